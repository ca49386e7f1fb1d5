// Compose a question over any view; see its answer as a table, as a picture, and the request itself.

import { addressWriter, fill, h } from "../dom.js";
import { address, get, pathOf } from "../api.js";
import { number, period } from "../format.js";
import { curl, grainsOf, seconds } from "../query.js";
import { choice, copyButton, failure, field, keyValue, table } from "../tables.js";
import { explained, isAdded, isProvisional, numbersOf, numeric, shown } from "../values.js";
import { chart } from "../chart.js";

const KNOWN = ["from", "to", "grain", "tz", "by", "answers", "order", "limit", "having", "window", "compare", "fill", "explain"];
const TESTS = { "": "is", ".not": "is not", ".prefix": "begins with", ".null": "is null" };

export async function show(main, { session, query }) {
  const writeAddress = addressWriter();
  const { views } = await get("/views");
  const computed = views.filter((each) => each.version !== null);
  if (!computed.length) {
    fill(main, h("h1", {}, "Explore"), h("p", { class: "empty" }, "There is no view to ask yet. It joins at the next run: ", h("code", {}, "tidemark batch run")));
    return () => {};
  }
  const names = computed.map((each) => each.name);
  const name = names.includes(query.get("view")) ? query.get("view") : names[0];
  const view = await get(pathOf(name));
  if (!main.isConnected) return () => {};  // another page was chosen meanwhile, and the address is its own
  const form = compose(view, query, ask);
  const answer = h("section", { class: "panel", "aria-label": "Answer" });
  fill(main, h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Explore"), h("p", { class: "doc" }, view.doc)),
    choice("View", names, name, (next) => { location.hash = `#/explore?view=${encodeURIComponent(next)}`; })), form.element, answer);
  let turn = 0;

  async function ask(event) {
    event?.preventDefault();
    const parameters = form.parameters(), own = turn += 1;
    writeAddress(`#/explore?${new URLSearchParams([["view", name], ...parameters])}`);
    try {
      const found = await get(pathOf(name, "/query"), parameters);
      if (own === turn) drawAnswer(answer, view, parameters, found, session);
    } catch (error) {
      if (own === turn) fill(answer, h("h2", {}, "Answer"), failure(error), request(view, parameters, session));
    }
  }

  await ask();
  return () => {};
}

// ---- the question --------------------------------------------------------------

function compose(view, query, ask) {
  const given = (name, usual) => query.get(name) ?? usual;
  const text = (name, usual, hint) => h("input", { name, value: given(name, usual), placeholder: hint, spellcheck: "false", autocomplete: "off" });
  const listed = (name, values) => {
    const chosen = (given(name, "") || "").split(",").filter(Boolean);
    return values.map((each) => h("label", { class: "check" }, h("input", { type: "checkbox", name, value: each, checked: chosen.includes(each) }), each));
  };
  const one = (name, values, usual) => h("select", { name }, [...new Set([...values, given(name, usual)])].map((each) => h("option", { value: each, selected: each === given(name, usual) }, each || "–")));
  const filters = h("div", { class: "filter-rows" });
  for (const [name, value] of query) {
    const found = filterOf(view, name);
    if (found) filters.append(filterRow(view, found[0], found[1], value));
  }
  const element = h("form", { class: "panel compose", onsubmit: ask, "aria-label": "Question" },
    h("fieldset", {}, h("legend", {}, "Answers"), listed("answers", Object.keys(view.answers))),
    Object.keys(view.keys).length > 0 && h("fieldset", {}, h("legend", {}, "By"), listed("by", Object.keys(view.keys))),
    h("div", { class: "controls" },
      field("From", text("from", "-24h", "-24h, 2026-03-01")), field("To", text("to", "", "now")),
      field("Grain", one("grain", ["all", ...grainsOf(view)], "all")), field("Time zone", text("tz", "", "UTC")),
      field("Order", text("order", "", "-hits")), field("Limit", text("limit", "", "1000")),
      field("Having", text("having", "", "hits > 100")), field("Window", text("window", "", "7d")),
      field("Compare", one("compare", ["", "previous_period"], "")), field("Fill", one("fill", ["", "zero"], "")),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "explain", value: "true", checked: given("explain") === "true" }), "Explain")),
    Object.keys(view.keys).length > 0 && h("fieldset", {}, h("legend", {}, "Filters"), filters,
      h("button", { type: "button", class: "quiet", onclick: () => filters.append(filterRow(view, Object.keys(view.keys)[0], "", "")) }, "Add a filter")),
    h("button", { class: "primary" }, "Ask"));

  function parameters() {
    const data = new FormData(element), found = [];
    for (const name of KNOWN) {
      const value = data.getAll(name).filter(Boolean).join(",").trim();
      if (value && !(name === "grain" && value === "all")) found.push([name, value]);
    }
    for (const row of filters.children) {
      const [key, test, value] = [...row.querySelectorAll("select, input")].map((each) => each.value);
      found.push([`key.${key}${test}`, test === ".null" ? "true" : value]);
    }
    return found;
  }
  return { element, parameters };
}

function filterOf(view, name) {
  const found = /^(?:key\.)?(.+?)(\.not|\.prefix|\.null)?$/.exec(name);
  return found && found[1] in view.keys && !KNOWN.includes(name) ? [found[1], found[2] ?? ""] : null;
}

function filterRow(view, key, test, value) {
  const row = h("div", { class: "filter-row" },
    h("select", { "aria-label": "Key" }, Object.keys(view.keys).map((each) => h("option", { value: each, selected: each === key }, each))),
    h("select", { "aria-label": "Test" }, Object.entries(TESTS).map(([each, text]) => h("option", { value: each, selected: each === test }, text))),
    h("input", { "aria-label": "Value", value, spellcheck: "false" }),
    h("button", { type: "button", class: "quiet", "aria-label": "Remove this filter", onclick: () => row.remove() }, "×"));
  return row;
}

// ---- the answer ----------------------------------------------------------------

function drawAnswer(element, view, parameters, answer, session) {
  const { meta, rows } = answer, given = new Map(parameters);
  const by = (given.get("by") ?? "").split(",").filter(Boolean), names = Object.keys(meta.answers);
  const picture = pictureOf(view, answer, by, names);
  const panels = { Table: () => tableOf(view, answer, by, names, given), ...(picture && { Chart: picture }), Request: () => request(view, parameters, session) };
  const shownPanel = h("div", { class: "tab-panel", role: "tabpanel", tabindex: "0", "aria-label": "Table" });
  const tabs = h("div", { class: "segments", role: "tablist", "aria-label": "Answer as", onkeydown: step });
  let chosen = "Table";

  function choose(title, focus = false) {
    chosen = title;
    fill(tabs, Object.keys(panels).map((each) => h("button", { type: "button", role: "tab", "aria-selected": String(each === title), tabindex: each === title ? "0" : "-1", onclick: () => choose(each, true) }, each)));
    fill(shownPanel, panels[title]());
    shownPanel.setAttribute("aria-label", title);
    if (focus) tabs.querySelector("[aria-selected=true]").focus();
  }
  function step(event) {
    const titles = Object.keys(panels), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) choose(titles.at((titles.indexOf(chosen) + move) % titles.length), true);
  }

  fill(element, h("div", { class: "panel-head" }, h("h2", {}, "Answer"), tabs),
    h("p", { class: "fresh" }, meta.degraded ? h("strong", { class: "bad-text" }, meta.why)
      : `${number(rows.length)} ${rows.length === 1 ? "row" : "rows"}${answer.next ? ", and more" : ""} · run ${meta.batch.run} · ${meta.speed?.read ? "batch ⊕ speed" : "batch view alone was needed"}`),
    shownPanel);
  choose("Table");
}

function tableOf(view, { meta, rows }, by, names, given) {
  const tz = meta.range.tz, stepS = meta.range.grain === "all" ? 86_400 : seconds(meta.range.grain);
  return table(`Answer of ${view.name}`, [
    ...(meta.range.grain === "all" ? [] : [{ head: `period (${tz})`, cell: (row) => period(row.bucket, tz, stepS) }]),
    ...by.map((key) => ({ head: key, className: "wide", cell: (row) => keyValue(row[key]) })),
    ...names.map((name) => ({ head: name, isNumber: true, cell: (row) => shown(row[name]), title: (row) => explained(row, name) })),
    ...(given.get("explain") ? names.map((name) => ({ head: `${name}: batch ⊕ speed`, cell: (row) => explained(row, name) })) : []),
    ...(given.get("compare") ? names.map((name) => ({ head: `${name} before`, isNumber: true, cell: (row) => shown(row.previous?.[name]) })) : []),
  ], rows, { empty: "No rows: nothing in this range fits." });
}

/** A picture where there is one: of the first number over time. */
function pictureOf(view, { meta, rows }, by, names) {
  const name = numbersOf(view).find((each) => names.includes(each));
  if (!name || by.length || meta.range.grain === "all" || rows.length < 2) return null;
  return () => {
    const drawn = chart(), stepS = seconds(meta.range.grain);
    const points = rows.map((row) => ({ row, iso: row.bucket, value: numeric(row[name]), batch: numeric(row.explain ? row.explain.batch[name] : row[name]), previous: row.previous ? numeric(row.previous[name]) : undefined, isProvisional: isProvisional(row) }));
    queueMicrotask(() => drawn.draw({ points, tz: meta.range.tz, stepS, style: isAdded(view, name) ? "bars" : "line", label: `${name} of ${view.name}`,
      describe: ({ row }) => [period(row.bucket, meta.range.tz, stepS), `${name} ${shown(row[name])}`, explained(row, name)].filter(Boolean) }));
    return drawn.element;
  };
}

function request(view, parameters, session) {
  const path = address(pathOf(view.name, "/query"), parameters), command = curl(view.name, parameters, session.key);
  return h("div", { class: "request" }, h("pre", { tabindex: "0" }, `GET ${path}`), h("pre", { tabindex: "0" }, command),
    h("div", { class: "actions" }, copyButton("Copy as curl", () => command), h("a", { class: "quiet", href: address(pathOf(view.name, "/query"), [...parameters, ["format", "csv"]]), download: `${view.name}.csv` }, "Export CSV")));
}
