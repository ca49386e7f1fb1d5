// From what is chosen on a page to the parameters of a question, and to the same question for a terminal.

import { address, pathOf } from "./api.js";

const UNITS = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400 };
const CALENDAR = { hour: 3_600, day: 86_400, week: 604_800, month: 2_592_000 };
const COARSER = ["1m", "5m", "15m", "hour", "6h", "day", "week", "month"];
const RANGES = ["15m", "1h", "6h", "24h", "7d", "30d", "90d"];
const MOST_PERIODS = 120;
const DAY = 86_400;

/** Seconds of "1h", "5s", "day". */
export function seconds(text) {
  if (text in CALENDAR) return CALENDAR[text];
  const found = /^(\d+)(ms|s|m|h|d)$/.exec(text ?? "");
  return found ? Number(found[1]) * UNITS[found[2]] : NaN;
}

/** The ranges that make sense for a view: at least two of its buckets. */
export function rangesOf(view) {
  const own = seconds(view.grain);
  const found = RANGES.filter((each) => seconds(each) >= 2 * own && seconds(each) / own <= 200_000);
  return found.length ? found : ["90d"];
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
  return grainsOf(view).find((each) => rangeS / seconds(each) <= MOST_PERIODS) ?? "month";
}

/** How long the range of a state is, in seconds. */
export function rangeSeconds(state) {
  if (!state.from) return seconds(state.range);
  const end = state.to ? Date.parse(state.to) : Date.now();
  return Math.max(1, (end - Date.parse(state.from)) / 1_000);
}

/** The parameters that every question of a state has: range, zone, filters. */
export function shared(state) {
  const found = state.from
    ? [["from", state.from], ...(state.to ? [["to", state.to]] : [])]
    : [["from", `-${state.range}`]];
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
    range, filters,
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
