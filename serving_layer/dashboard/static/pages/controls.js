// Range, grain, zone, comparison and filters of a view page.

import { fill, h } from "../dom.js";
import { grainsOf, rangesOf, rangeSeconds, usualGrain } from "../query.js";
import { choice, field, keyValue } from "../tables.js";

const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The controls of a state; `change(part)` is called with what is to be different. */
export function controls(view, state, change) {
  const custom = Boolean(state.from);
  const ranges = h("div", { class: "segments", role: "group", "aria-label": "Range" },
    rangesOf(view).map((each) => h("button", { type: "button", "aria-pressed": String(!custom && each === state.range),
      onclick: () => change({ range: each, from: null, to: null, grain: null }) }, each)),
    h("button", { type: "button", "aria-pressed": String(custom), "aria-expanded": String(custom), onclick: () => change(custom ? { from: null, to: null } : lastDay()) }, "Custom"));
  return h("div", { class: "controls" }, ranges,
    custom && [time("From", state.from, (from) => change({ from })), time("To", state.to, (to) => change({ to }))],
    choice("Grain", ["auto", ...grainsOf(view)], state.grain ?? "auto", (grain) => change({ grain: grain === "auto" ? null : grain }),
      (each) => (each === "auto" ? `auto (${usualGrain(view, rangeSeconds(state))})` : each)),
    zone(state.tz, (tz) => change({ tz })),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: state.compare, onchange: (event) => change({ compare: event.target.checked }) }), "Compare with the period before"));
}

function lastDay() {
  const day = 86_400_000, midnight = Math.floor(Date.now() / day) * day;
  return { from: new Date(midnight - day).toISOString(), to: new Date(midnight + day).toISOString(), grain: null };
}

// A time of the state is UTC; the field shows it as such.
function time(label, value, onChange) {
  return field(`${label} (UTC)`, h("input", { type: "datetime-local", value: value ? value.slice(0, 16) : "", required: true,
    onchange: (event) => { if (event.target.value) onChange(`${event.target.value}:00.000Z`); } }));
}

function zone(chosen, onChange) {
  const input = h("input", { list: "zones", value: chosen, spellcheck: "false", autocomplete: "off", onchange: () => onChange(input.value.trim() || "UTC") });
  const names = [...new Set(["UTC", OWN_ZONE, ...Intl.supportedValuesOf("timeZone")])];
  const listed = h("datalist", { id: "zones" }, names.map((each) => h("option", { value: each })));
  return h("div", {}, field("Time zone", input, "zone"), listed);
}

/** The filters that hold, each with a button that takes it away. */
export function filterChips(element, state, change) {
  fill(element, state.filters.map(([key, value], index) => h("li", { class: "chip" },
    h("span", {}, `${key} = `, keyValue(value)),
    h("button", { type: "button", "aria-label": `Remove the filter on ${key}`, onclick: () => change({ filters: state.filters.toSpliced(index, 1) }) }, "×"))));
  element.hidden = !state.filters.length;
}
