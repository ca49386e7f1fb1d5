// The page of a view, made from its declaration: headline answers, a live time series, a breakdown by key.

import { debounced, fill, h, refill, say } from "../dom.js";
import { address, get, pathOf } from "../api.js";
import { change as changed, cut, day, duration, number, period } from "../format.js";
import { ALL, curl, isOutside, newestRange, queryOf, rangeSeconds, seconds, shared, stateOf, usualGrain } from "../query.js";
import { choice, copyButton, failure, keyValue, legend, table } from "../tables.js";
import { errorOf, explained, hasCounts, headline, isAdded, isProvisional, listsOf, numbersOf, numeric, shown, span } from "../values.js";
import { chart } from "../chart.js";
import { follow } from "../live.js";
import { controls, filterChips } from "./controls.js";
import { freshText } from "./overview.js";

const EVERY = ["every", "1s"];
const USUAL_ROWS = 1_000, MAX_ROWS = 10_000;
const COMPARED = ["compare", "previous_period"];

export async function show(main, { session, rest, query }) {
  const view = await get(pathOf(rest[0]));
  const usual = stateOf(view, new URLSearchParams());
  let state = stateOf(view, query);
  state.answer = numbersOf(view).includes(state.answer) ? state.answer : numbersOf(view)[0] ?? null;
  const page = parts(view);
  let ends = [];

  fill(main, page.all);

  function change(part) {
    state = { ...state, ...part };
    const path = `#/views/${encodeURIComponent(view.name)}`, parameters = queryOf(state, { ...usual, answer: numbersOf(view)[0] });
    history.replaceState(null, "", parameters ? `${path}?${parameters}` : path);
    begin();
  }

  function begin() {
    ends.forEach((end) => end());
    const grain = state.grain ?? usualGrain(view, rangeSeconds(state));
    const many = rangeSeconds(state) / seconds(grain) > USUAL_ROWS ? [["limit", String(MAX_ROWS)]] : [];
    const all = shared(state), compared = state.compare ? [COMPARED] : [];
    const series = [...all, ["grain", grain], ["fill", "zero"], ["explain", "true"], ...many, ...compared];
    const broken = breakdown(view, state, all, compared);
    fill(page.controls, controls(view, state, change));
    filterChips(page.filters, state, change);
    fill(page.actions, actions(view, broken ?? series, session));
    fill(page.problem);
    const problem = debounced(50, (error) => fill(page.problem, failure(error)));
    const drawn = (draw) => (answer) => { fill(page.problem); draw(answer); };
    ends = [
      follow(view.name, [...all, ["explain", "true"], ...compared, EVERY], drawn((answer) => drawTotals(page, view, state, answer, change)), problem),
      follow(view.name, [...series, EVERY], drawn((answer) => drawSeries(page, view, state, answer, grain, change)), problem),
    ];
    page.breakdown.hidden = !broken;
    if (broken) {
      fill(page.breakdownControls, breakdownControls(view, state, change));
      ends.push(follow(view.name, [...broken, EVERY], drawn((answer) => drawBreakdown(page, view, state, answer, change)), problem));
    }
  }

  begin();
  return () => ends.forEach((end) => end());
}

function parts(view) {
  const page = {
    controls: h("div", {}), filters: h("ul", { class: "chips", "aria-label": "Filters", hidden: true }),
    problem: h("div", {}), fresh: h("p", { class: "fresh" }), totals: h("div", { class: "totals", role: "group", "aria-label": "Answers over the range" }),
    chart: chart(), legend: h("div", {}), lists: h("div", { class: "lists" }), actions: h("div", { class: "actions" }),
    values: h("div", {}), breakdownControls: h("div", { class: "controls" }), rows: h("div", {}),
  };
  page.breakdown = h("section", { class: "panel", "aria-label": "Breakdown" }, h("div", { class: "panel-head" }, h("h2", {}, "Breakdown"), page.breakdownControls), page.rows);
  page.all = [
    h("div", { class: "page-head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/" }, "Overview"), " / ", view.source),
      h("h1", {}, view.name), h("p", { class: "doc" }, view.doc), page.fresh), page.actions),
    page.controls, page.filters, page.problem, page.totals,
    h("section", { class: "panel", "aria-label": "Over time" }, page.chart.element, page.legend,
      h("details", { class: "as-table" }, h("summary", {}, "Show as a table"), page.values)),
    page.lists, page.breakdown, about(view)];
  return page;
}

// ---- queries --------------------------------------------------------------------

function breakdown(view, state, all, compared) {
  if (!state.by) return null;
  const one = state.answer && isOrdered(view, state.answer) ? [["order", `-${state.answer}`]] : [];
  return [...all, ["by", state.by], ...one, ["limit", String(state.top)], ["explain", "true"], ...compared];
}

// Several quantiles are no one value to order by.
function isOrdered(view, name) {
  return view.answers[name].kind !== "quantiles";
}

function actions(view, parameters, session) {
  const csv = parameters.filter(([name]) => name !== "explain");
  return [
    h("a", { class: "quiet", href: address(pathOf(view.name, "/query"), [...csv, ["format", "csv"]]), download: `${view.name}.csv` }, "Export CSV"),
    copyButton("Copy as curl", () => curl(view.name, csv, session.key)),
    h("a", { class: "quiet", href: `#/explore?${new URLSearchParams([["view", view.name], ...csv])}` }, "Explore"),
  ];
}

// ---- drawing --------------------------------------------------------------------

function drawTotals(page, view, state, answer, change) {
  const row = answer.rows[0], { meta } = answer;
  fill(page.fresh, meta.degraded
    ? h("strong", { class: "bad-text" }, `Degraded: ${meta.why}`)
    : freshText({ lag_s: meta.speed?.lag_s ?? null, run: meta.batch.run, published: meta.batch.published }),
  h("span", { class: "cut", title: "The next offset of each partition: the answer holds exactly the events below it" }, ` · cut ${cut(meta.cut)}`));
  const names = numbersOf(view);
  if (page.totals.children.length !== names.length) fill(page.totals, names.map((name) => total(view, name, change)));
  names.forEach((name, index) => {
    const box = page.totals.children[index], { kind } = view.answers[name], error = errorOf(view.answers[name]);
    box.setAttribute("aria-pressed", String(name === state.answer));
    const [first, rest] = headline(row?.[name]);
    say(box.querySelector(".headline"), `${error && kind === "distinct" ? "≈ " : ""}${first}`);
    const before = state.compare ? changed(numeric(row?.[name]), numeric(row?.previous?.[name])) : null;
    const note = box.querySelector(".note");
    say(note, [rest, error && error.text, state.compare && (before ? `${before.text} against the period before` : "nothing before to compare with")].filter(Boolean).join(" · "));
    box.title = row ? explained(row, name) : "";
  });
  drawLists(page, view, row);
}

function total(view, name, change) {
  return h("button", { type: "button", class: "total", onclick: () => change({ answer: name }) },
    h("span", { class: "total-name" }, name), h("span", { class: "headline" }, "…"), h("span", { class: "note" }));
}

function drawLists(page, view, row) {
  refill(page.lists, listsOf(view).map((name) => {
    const isCounted = hasCounts(view, name), entries = row?.[name] ?? [];
    const rows = isCounted ? entries : entries.map((value) => ({ value })), most = Math.max(1, ...rows.map((each) => each.count ?? 0));
    return h("section", { class: "panel", "aria-label": name }, h("h2", {}, name), table(`${name} of ${view.name}`, [
      { head: view.answers[name].kind === "histogram" ? "range" : "value", className: "wide", cell: (each) => ("value" in each ? keyValue(each.value) : span(each)) },
      ...(isCounted ? [
        { head: "", className: "share", cell: (each) => bar(each.count / most) },
        { head: "count", isNumber: true, cell: (each) => number(each.count) + (each.off_by_at_most ? ` (at most ${number(each.off_by_at_most)} less)` : "") },
      ] : []),
    ], rows, { empty: row?.[name] === null ? "More values than this answer lists." : "Nothing in this range." }));
  }));
}

function bar(share) {
  const inner = h("span", {});
  inner.style.width = `${Math.max(0, Math.min(share, 1)) * 100}%`;
  return h("span", { class: "meter", "aria-hidden": "true" }, inner);
}

function drawSeries(page, view, state, answer, grain, change) {
  const name = state.answer;
  if (!name) return page.chart.element.parentElement.remove();
  const { kind } = view.answers[name], tz = answer.meta.range.tz, stepS = seconds(grain);
  const error = kind === "distinct" ? errorOf(view.answers[name]) : null;
  const points = answer.rows.map((row) => pointOf(row, name, error));
  const isEmpty = points.every((each) => !each.value);
  page.chart.draw({
    points, tz, stepS, style: isAdded(view, name) ? "bars" : "line",
    label: `${name} of ${view.name} by ${grain}`,
    describe: (point) => described(point, name, tz, stepS, state),
  });
  const quantiles = points.find((each) => each.bands)?.names;
  fill(page.legend, isEmpty ? emptyState(view, state, change) : legend({ run: answer.meta.batch.run, hasPrevious: state.compare,
    hasBands: quantiles ? `line ${quantiles[0]}, bands up to ${quantiles.slice(1).join(", ")}` : error?.share ? `within ${error.text}` : "" }));
  if (page.values.parentElement.open || !page.values.children.length) {
    refill(page.values, table(`${name} of ${view.name} by ${grain}`, [
      { head: `period (${tz})`, cell: (row) => period(row.bucket, tz, stepS) },
      { head: name, isNumber: true, cell: (row) => shown(row[name]) },
      { head: "batch", isNumber: true, cell: (row) => shown(row.explain.batch[name]) },
      { head: "speed", isNumber: true, cell: (row) => shown(row.explain.speed[name]) },
      ...(state.compare ? [{ head: "period before", isNumber: true, cell: (row) => shown(row.previous?.[name]) }] : []),
    ], answer.rows));
  }
}

function pointOf(row, name, error) {
  const value = row[name], one = numeric(value);
  const found = { row, iso: row.bucket, value: one, batch: numeric(row.explain.batch[name]), previous: row.previous ? numeric(row.previous[name]) : undefined, isProvisional: isProvisional(row) };
  if (value && typeof value === "object" && !Array.isArray(value)) return { ...found, bands: Object.values(value), names: Object.keys(value) };
  if (error?.share && one) return { ...found, low: one * (1 - error.share), high: one * (1 + error.share) };
  return found;
}

function described({ row, isProvisional: isNew }, name, tz, stepS, state) {
  return [
    period(row.bucket, tz, stepS), `${name} ${shown(row[name])}`, explained(row, name),
    isNew ? "provisional: has events since the cut" : "confirmed by the run",
    ...(state.compare ? [`period before ${shown(row.previous?.[name])}`] : []),
  ];
}

function emptyState(view, state, change) {
  if (isOutside(view, state)) return elsewhere(view, change);
  return h("div", { class: "empty" }, h("p", {}, h("strong", {}, "No events in this range yet.")),
    h("p", {}, "Choose a longer range, or send one to the collector (", h("code", {}, "tidemark status"), " shows its address):"),
    h("pre", {}, `curl -u admin:"$SECRET" "$COLLECTOR/events/${view.source}" -d '{"user_id": "ann", …}'`));
}

// The events of an import are often older than every range that ends now.
function elsewhere(view, change) {
  const range = newestRange(view);
  const offer = (text, part) => h("button", { type: "button", onclick: () => change({ grain: null, ...part }) }, text);
  return h("div", { class: "empty" }, h("p", {}, h("strong", {}, "No events in this range. "), `This view has events from ${day(view.data.from)} to ${day(view.data.to)}.`),
    h("p", { class: "actions" }, offer("Show all of them", { range: ALL, from: null, to: null }), offer("Show the newest", range)));
}

// ---- breakdown -----------------------------------------------------------------

function breakdownControls(view, state, change) {
  const keys = Object.keys(view.keys);
  return [
    keys.length > 1 && choice("By", keys, state.by, (by) => change({ by })),
    choice("Top", [5, 10, 25, 100], state.top, (top) => change({ top: Number(top) })),
  ];
}

function drawBreakdown(page, view, state, answer, change) {
  const names = numbersOf(view), chosen = state.answer;
  const most = Math.max(1e-9, ...answer.rows.map((row) => numeric(row[chosen]) ?? 0));
  refill(page.rows, table(`${view.name} by ${state.by}`, [
    { head: state.by, className: "wide", cell: (row) => keyButton(row[state.by], state, change) },
    ...(chosen ? [{ head: "", className: "share", cell: (row) => bar((numeric(row[chosen]) ?? 0) / most) }] : []),
    ...names.map((name) => ({ head: name, isNumber: true, cell: (row) => shown(row[name]), title: (row) => explained(row, name) })),
    ...(state.compare && chosen ? [{ head: `${chosen}, change`, isNumber: true, cell: (row) => changed(numeric(row[chosen]), numeric(row.previous?.[chosen]))?.text ?? "new" }] : []),
  ], answer.rows, { empty: "No key has events in this range.", className: "rows-of-keys" }));
  if (answer.next) page.rows.append(h("p", { class: "hint" }, `The first ${answer.rows.length}${chosen && isOrdered(view, chosen) ? ` by ${chosen}` : ""}; there are more.`));
}

function keyButton(value, state, change) {
  const isChosen = state.filters.some(([key, each]) => key === state.by && each === asText(value));
  const filters = isChosen ? state.filters.filter(([key, each]) => key !== state.by || each !== asText(value)) : [...state.filters, [state.by, asText(value)]];
  return h("button", { type: "button", class: "key-value", "aria-pressed": String(isChosen), title: isChosen ? "Remove this filter" : "Show this one alone", onclick: () => change({ filters }) }, keyValue(value));
}

function asText(value) {
  return value === null ? null : String(value);
}

function about(view) {
  const { freshness } = view;
  const line = (name, value) => value && [h("dt", {}, name), h("dd", {}, value)];
  return h("details", { class: "about" }, h("summary", {}, "About this view"),
    h("dl", {}, line("source", view.source), line("grain", view.grain),
      line("data", view.data && `${day(view.data.from)} to ${day(view.data.to)}`),
      line("keys", Object.entries(view.keys).map(([key, type]) => `${key} (${type})`).join(", ") || "none"),
      line("where", view.where), line("groups in the batch view", view.groups === null ? null : number(view.groups)),
      line("version", view.version === view.declared ? view.version : `${view.version ?? "none"}; ${view.declared} joins at the next run`),
      line("age of the run", freshness.batch_age_s === null ? null : duration(freshness.batch_age_s)),
      Object.entries(view.answers).map(([name, about]) => line(name, `${about.kind}, ${about.exact ? "exact" : about.error}`))));
}
