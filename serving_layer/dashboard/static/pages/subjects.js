// Schemas: the subjects of the registry, the versions of one, how two of them differ, and who uses their fields.

import { addressWriter, fill, h } from "../dom.js";
import { get } from "../api.js";
import { choice, copyButton, table } from "../tables.js";

const HEAD = "Schemas";

export async function show(main, { rest, query }) {
  const subject = rest.join("/");
  return subject ? showSubject(main, subject, query) : showAll(main);
}

async function showAll(main) {
  const { subjects } = await get("/schemas");
  fill(main,
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, HEAD),
      h("p", { class: "doc" }, "What producers registered: the subjects of the schema registry that this key may read."))),
    h("section", { class: "panel", "aria-label": "Subjects" },
      table("Subjects", [
        { head: "subject", cell: (each) => h("a", { href: pathOf(each.subject) }, each.subject) },
        { head: "type", cell: (each) => each.type },
        { head: "latest version", cell: (each) => each.version, isNumber: true },
        { head: "versions", cell: (each) => each.versions, isNumber: true },
        { head: "id", cell: (each) => each.id, isNumber: true },
        { head: "compatibility", cell: (each) => each.level },
        { head: "source", cell: (each) => each.sources.map(sourceLink) },
      ], subjects, { empty: "No schema is registered, or none that this key may read." })));
  return () => {};
}

async function showSubject(main, subject, query) {
  const asked = ["version", "compared"].filter((name) => query.get(name)).map((name) => [name, query.get(name)]);
  const found = await get(`/schemas/${encodeURIComponent(subject)}`, asked);
  const writeAddress = addressWriter();
  const select = (version, compared) => {
    const next = pathOf(subject, compared ? { version, compared } : { version });
    if (location.hash === next) return;
    writeAddress(next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  const numbers = found.versions.map((each) => each.version);
  const others = numbers.filter((each) => each !== found.version);
  fill(main,
    h("div", { class: "page-head" },
      h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#/schemas" }, HEAD)), h("h1", {}, subject),
        h("p", { class: "doc" }, `${found.type}, compatibility ${found.level}. Version ${found.version} has the id ${found.id}.`)),
      h("div", { class: "controls" },
        choice("Version", numbers, found.version, (version) => select(version)),
        others.length > 0 && choice("Compared with", found.compared ? others : ["", ...others], found.compared?.version ?? "",
          (compared) => select(found.version, compared), (each) => each || "nothing"))),
    found.compared && h("section", { class: "panel", "aria-label": "Differences" },
      h("h2", {}, `From version ${found.compared.version} to version ${found.version}`), difference(found.compared.lines)),
    h("section", { class: "panel", "aria-label": "Text" },
      h("div", { class: "panel-head" }, h("h2", {}, `Version ${found.version}`), copyButton("Copy", () => found.text)),
      found.references.length > 0 && h("p", { class: "hint" }, "Refers to ", found.references.map((each, index) => [index ? ", " : "",
        h("a", { href: pathOf(each.subject, { version: each.version }) }, `${each.name} (${each.subject}, version ${each.version})`)])),
      h("pre", { tabindex: "0" }, found.text)),
    found.sources.map((source) => h("section", { class: "panel", "aria-label": `Fields of ${source.name}` },
      h("h2", {}, "Who uses its fields: source ", sourceLink(source.name), `, version ${source.version}`), fields(source))));
  return () => {};
}

function difference(lines) {
  if (lines === null) return h("p", { class: "empty" }, "The texts are too long to be compared here. `tidemark registry diff` compares them.");
  if (!lines.some((line) => line[0] !== " ")) return h("p", { class: "empty" }, "Their texts are equal.");
  const tags = { "+": "ins", "-": "del" };
  return h("pre", { class: "diff", tabindex: "0" }, lines.map((line) => h(tags[line[0]] ?? "span", {}, line)));
}

function fields(source) {
  return table(`Fields of ${source.name}`, [
    { head: "field", cell: (each) => h("code", {}, each.path) },
    { head: "type", cell: (each) => h("code", {}, each.type.startsWith("struct<") ? "struct" : each.type) },
    { head: "used by", cell: (each) => each.views.map((view, index) => [index ? ", " : "", h("a", { href: `#/views/${encodeURIComponent(view)}` }, view)]) },
    { head: "in this version", cell: (each) => (each.written === null ? "" : each.written ? "yes" : "no") },
  ], source.fields);
}

function sourceLink(name) {
  return h("a", { href: `#/sources?source=${encodeURIComponent(name)}` }, name);
}

function pathOf(subject, query = {}) {
  const parameters = new URLSearchParams(query).toString();
  return `#/schemas/${encodeURIComponent(subject)}${parameters && `?${parameters}`}`;
}
