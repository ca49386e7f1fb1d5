// From what is chosen on a page to the parameters of a query, and to the same query for a terminal.

import { address, pathOf } from "./api.js";

const UNITS = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400 };
const CALENDAR = { hour: 3_600, day: 86_400, week: 604_800, month: 2_592_000 };
const COARSER = ["1m", "5m", "15m", "hour", "6h", "day", "week", "month"];
const RANGES = ["15m", "1h", "6h", "24h", "7d", "30d", "90d"];
const MAX_PERIODS = 120;
export const ALL = "all";
const DAY = 86_400;

/** Seconds of "1h", "5s", "day". */
export function seconds(text) {
  if (text in CALENDAR) return CALENDAR[text];
  const found = /^(\d+)(ms|s|m|h|d)$/.exec(text ?? "");
  return found ? Number(found[1]) * UNITS[found[2]] : NaN;
}

/** The ranges that make sense for a view: at least two of its buckets; and all of its data, once there is any. */
export function rangesOf(view) {
  const own = seconds(view.grain);
  const found = RANGES.filter((each) => seconds(each) >= 2 * own && seconds(each) / own <= 200_000);
  return [...(found.length ? found : ["90d"]), ...(view.data ? [ALL] : [])];
}

export function usualRange(view) {
  const own = seconds(view.grain);
  return own >= DAY ? "30d" : own >= 900 ? "24h" : "1h";
}

/** The grains that a view can be asked for. */
export function grainsOf(view) {
  const own = seconds(view.grain);
  const coarser = COARSER.filter((each) => seconds(each) > own && seconds(each) % own === 0);
  return [view.grain, ...coarser];
}

/** The finest grain that draws not too many periods. */
export function usualGrain(view, rangeS) {
  return grainsOf(view).find((each) => rangeS / seconds(each) <= MAX_PERIODS) ?? "month";
}

/** How long the range of a state is, in seconds. */
export function rangeSeconds(state) {
  const { from, to } = bounds(state);
  if (!from) return seconds(state.range);
  return Math.max(1, ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1_000);
}

// Where a range begins and ends, if it is not counted back from now. A range of all data stays open at its end while
// events arrive, so that new ones are in it.
function bounds(state) {
  if (state.from) return { from: state.from, to: state.to };
  if (state.range !== ALL) return {};
  const sinceEnd = Date.now() - Date.parse(state.data.to);
  return { from: state.data.from, to: sinceEnd >= 0 && sinceEnd < DAY * 1_000 ? null : state.data.to };
}

/** Whether all data of a view lies before or after a range. */
export function isOutside(view, state) {
  if (!view.data) return false;
  const { from, to } = bounds(state), end = to ? Date.parse(to) : Date.now();
  const begin = from ? Date.parse(from) : end - seconds(state.range) * 1_000;
  return Date.parse(view.data.to) <= begin || Date.parse(view.data.from) >= end;
}

/** A range as long as the usual one, at the end of the data of a view. */
export function newestRange(view) {
  const end = Date.parse(view.data.to);
  const begin = Math.max(Date.parse(view.data.from), end - seconds(usualRange(view)) * 1_000);
  return { from: new Date(begin).toISOString(), to: new Date(end).toISOString() };
}

/** The parameters that every query of a state has: range, zone, filters. */
export function shared(state) {
  const { from, to } = bounds(state);
  const found = from ? [["from", from], ...(to ? [["to", to]] : [])] : [["from", `-${state.range}`]];
  if (state.tz !== "UTC") found.push(["tz", state.tz]);
  for (const [key, value] of state.filters) found.push(filter(key, value));
  return found;
}

function filter(key, value) {
  return value === null ? [`key.${key}.null`, "true"] : [`key.${key}`, value];
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request for a terminal. The secret is a variable of the shell's: it is not here, and belongs in no history. */
export function curl(view, parameters, key) {
  return curlOf(address(pathOf(view, "/query"), parameters), key);
}

/** The same of any path. `body` is sent as JSON; `options` are more of curl's own. */
export function curlOf(path, key, { headers = [], body, options = [] } = {}) {
  const sent = body === undefined ? headers : [...headers, ["Content-Type", "application/json"]];
  return ["curl", ...options, `-u ${quoted(key ?? "NAME")}:"$SECRET"`,
    ...sent.map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    ...(body === undefined ? [] : [`-d ${quoted(JSON.stringify(body))}`]),
    quoted(new URL(path, location.origin).href)].join(" ");
}

/** Parameters of an address bar, and back: a state that can be shared and has no secret. */
export function stateOf(view, query) {
  const filters = query.getAll("f").map((each) => {
    const at = each.indexOf("=");
    return at < 0 ? [each, null] : [each.slice(0, at), each.slice(at + 1)];
  }).filter(([key]) => key in view.keys);
  const range = rangesOf(view).includes(query.get("range")) ? query.get("range") : usualRange(view);
  return {
    range, filters, data: view.data,
    from: query.get("from"), to: query.get("to"),
    grain: grainsOf(view).includes(query.get("grain")) ? query.get("grain") : null,
    tz: query.get("tz") || "UTC",
    compare: query.get("compare") === "1",
    answer: query.get("answer"),
    by: query.get("by") in view.keys ? query.get("by") : Object.keys(view.keys)[0] ?? null,
    top: [5, 10, 25, 100].includes(Number(query.get("top"))) ? Number(query.get("top")) : 10,
  };
}

export function queryOf(state, usual) {
  const query = new URLSearchParams();
  if (state.from) { query.set("from", state.from); if (state.to) query.set("to", state.to); }
  else if (state.range !== usual.range) query.set("range", state.range);
  for (const name of ["grain", "answer", "by", "top", "tz"]) {
    if (state[name] && state[name] !== usual[name]) query.set(name, state[name]);
  }
  if (state.compare) query.set("compare", "1");
  for (const [key, value] of state.filters) query.append("f", value === null ? key : `${key}=${value}`);
  return query.toString();
}
