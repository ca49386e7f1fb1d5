// What the answers of a view are, by their kinds: which are one number, which are drawn how, how exact they are.

import { number } from "./format.js";

const COUNTED = new Set(["topk", "histogram", "valuecounts"]);
const VALUES = new Set(["firstk", "lastk", "largest", "smallest", "uniquevalues"]);
const ADDED = new Set(["count", "sum"]);

/** Names of the answers that are one number, the best headline first. */
export function numbersOf(view) {
  return Object.keys(view.answers).filter((name) => !isList(view, name) && !["first", "last"].includes(view.answers[name].kind));
}

export function listsOf(view) {
  return Object.keys(view.answers).filter((name) => isList(view, name));
}

function isList(view, name) {
  return COUNTED.has(view.answers[name].kind) || VALUES.has(view.answers[name].kind);
}

/** Whether each entry of a list has a count; else the list is of values. */
export function hasCounts(view, name) {
  return COUNTED.has(view.answers[name].kind);
}

/** Whether the parts of batch and speed view add up to the whole. */
export function isAdded(view, name) {
  return ADDED.has(view.answers[name].kind);
}

/** One number of an answer: itself, or of several quantiles the first; null where it has none. */
export function numeric(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "object") return Array.isArray(value) ? null : numeric(Object.values(value)[0]);
  const found = Number(value);
  return typeof value === "boolean" || Number.isNaN(found) ? null : found;
}

/** An answer as text, whatever its kind. */
export function shown(value) {
  if (value === null || value === undefined) return number(null);
  if (Array.isArray(value)) {
    if (!value.length) return number(null);
    return value.map((each) => (typeof each === "string" ? each : typeof each !== "object" ? shown(each) : "value" in each ? `${each.value} ${number(each.count)}` : `${span(each)} ${number(each.count)}`)).join(" · ");
  }
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${number(each)}`).join(" · ");
  return numeric(value) === null ? String(value) : number(value);
}

/** The same in two parts: what to read first, and the rest. */
export function headline(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [shown(value), ""];
  const parts = Object.entries(value).map(([name, each]) => `${name} ${number(each)}`);
  return [parts[0] ?? number(null), parts.slice(1).join(" · ")];
}

/** The bounds of one bar of a histogram. */
export function span(bar) {
  if (bar.from === undefined) return `< ${number(bar.below)}`;
  return bar.below === undefined ? `≥ ${number(bar.from)}` : `${number(bar.from)}–${number(bar.below)}`;
}

/** How far an answer may be off: null where it is exact, else {share, text}. */
export function errorOf(answer) {
  if (!answer || answer.exact) return null;
  const found = /([\d.]+)\s*%/.exec(answer.error ?? "");
  return { share: found ? Number(found[1]) / 100 : null, text: answer.error };
}

/** Whether there is nothing in an answer: no event was in it. */
export function isNothing(value) {
  if (value === null || value === undefined || value === 0) return true;
  if (Array.isArray(value)) return value.every((each) => typeof each === "object" && isNothing(each.count));
  if (typeof value === "object") return Object.values(value).every(isNothing);
  return Number(value) === 0;
}

/** Whether a row holds events that no batch run has counted yet. */
export function isProvisional(row) {
  return Boolean(row.explain) && !Object.values(row.explain.speed ?? {}).every(isNothing);
}

/** "batch 120 + speed 3 = 123", for one answer of a row. */
export function explained(row, name) {
  if (!row.explain) return "";
  const part = (layer) => shown(row.explain[layer]?.[name]);
  return `batch ${part("batch")} ⊕ speed ${part("speed")} = ${part("merged")}`;
}
