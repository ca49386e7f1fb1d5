// Numbers, sizes and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const CENTS = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const PERCENT = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 3 });
const MINUTE = 60, HOUR = 3_600, DAY = 86_400;

export const NOTHING = "–";

/** Whole numbers with all their digits, others with four, or two after the point where that is more. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(Number(value))) return NOTHING;
  const found = Number(value);
  if (Number.isInteger(found)) return WHOLE.format(found);
  return Math.abs(found) < 100 ? FINE.format(found) : CENTS.format(found);
}

/** For axes: 12K, 3.4M. */
export function short(value) {
  return Math.abs(value) < 1_000 ? FINE.format(value) : SHORT.format(value);
}

/** How one number changed against another: "+12.3%", "×240", or nothing where that means nothing. */
export function change(now, before) {
  if (typeof now !== "number" || typeof before !== "number" || before === 0) return null;
  const share = (now - before) / Math.abs(before);
  if (share > 10) return { text: `×${SHORT.format(now / before)}`, share };
  return { text: `${share > 0 ? "+" : ""}${PERCENT.format(share)}`, share };
}

export function bytes(size) {
  if (size === null || size === undefined) return NOTHING;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0, found = size;
  while (found >= 1_000 && unit < units.length - 1) { found /= 1_000; unit += 1; }
  return `${found >= 100 || unit === 0 ? Math.round(found) : found.toFixed(1)} ${units[unit]}`;
}

/** Seconds as "0.4 s", "12 s", "3 min", "5 h", "2 d". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 2 * MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < 2 * HOUR) return `${Math.round(seconds / MINUTE)} min`;
  if (seconds < 2 * DAY) return `${Math.round(seconds / HOUR)} h`;
  return `${Math.round(seconds / DAY)} d`;
}

/** How long ago a time was. */
export function ago(iso) {
  return iso ? `${duration(Math.max(0, (Date.now() - Date.parse(iso)) / 1_000))} ago` : "never";
}

const formats = new Map();

function inZone(tz, options) {
  const name = `${tz} ${JSON.stringify(options)}`;
  if (!formats.has(name)) formats.set(name, new Intl.DateTimeFormat("en-GB", { timeZone: tz, ...options }));
  return formats.get(name);
}

const CLOCK = { hour: "2-digit", minute: "2-digit" };
const DATE = { day: "numeric", month: "short" };

/** The beginning of a period as short as its length allows. `stepS`: that length in seconds. */
export function period(iso, tz, stepS) {
  const at = new Date(iso);
  if (stepS >= DAY) return inZone(tz, { ...DATE, ...(stepS > 27 * DAY && { year: "numeric" }) }).format(at);
  return inZone(tz, { ...DATE, ...CLOCK, ...(stepS < MINUTE && { second: "2-digit" }) }).format(at);
}

/** For an axis: the hour, and the day where a day begins. */
export function tick(iso, tz, stepS) {
  const at = new Date(iso);
  if (stepS >= DAY) return inZone(tz, DATE).format(at);
  const clock = inZone(tz, { ...CLOCK, ...(stepS < MINUTE && { second: "2-digit" }) }).format(at);
  return clock.startsWith("00:00") ? inZone(tz, DATE).format(at) : clock;
}

/** A day with its year, in UTC: "31 Dec 2013". */
export function day(iso) {
  return inZone("UTC", { ...DATE, year: "numeric" }).format(new Date(iso));
}

export function moment(iso, tz) {
  return iso ? inZone(tz, { ...DATE, ...CLOCK, second: "2-digit" }).format(new Date(iso)) : NOTHING;
}

/** JSON with a member a line. Its numbers are left as they are written: read and written again, large ones lose digits. */
export function indented(json) {
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  const line = (step) => { depth += step; return `\n${"  ".repeat(depth)}`; };
  const isOpening = (token) => token === "{" || token === "[", isClosing = (token) => token === "}" || token === "]";
  return tokens.map((token, index) => {
    if (isOpening(token)) return isClosing(tokens[index + 1]) ? token : token + line(1);
    if (isClosing(token)) return isOpening(tokens[index - 1]) ? token : line(-1) + token;
    return { ",": `,${line(0)}`, ":": ": " }[token] ?? token;
  }).join("");
}

/** A cut as text: "0:17 1:20". */
export function cut(value) {
  const parts = Object.entries(value ?? {});
  return parts.length ? parts.map(([partition, offset]) => `${partition}:${offset}`).join(" ") : "empty";
}

/** How many events are below a cut. */
export function eventsBelow(value) {
  return Object.values(value ?? {}).reduce((sum, offset) => sum + offset, 0);
}
