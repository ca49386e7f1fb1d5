// Sources: what their records look like, and which views use a field.

import { fill, h } from "../dom.js";
import { get } from "../api.js";
import { choice, table } from "../tables.js";

export async function show(main, { query }) {
  const { sources } = await get("/sources");
  if (!sources.length) {
    fill(main, h("h1", {}, "Sources"), h("p", { class: "empty" }, "There is no source that this key may see."));
    return () => {};
  }
  const names = sources.map((each) => each.name);
  const name = names.includes(query.get("source")) ? query.get("source") : names[0];
  const { schema } = await get(`/sources/${encodeURIComponent(name)}`);
  fill(main,
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, names.length > 1 ? "Sources" : `Source ${name}`),
      h("p", { class: "doc" }, "What the records of a source look like, and which views use each field.")),
      names.length > 1 && choice("Source", names, name, (next) => { location.hash = `#/sources?source=${encodeURIComponent(next)}`; })),
    h("section", { class: "panel", "aria-label": "Records" }, h("h2", {}, "Records"), facts(schema)),
    h("section", { class: "panel", "aria-label": "Fields" }, h("h2", {}, "Fields"), fields(schema)),
    schema.reader_schema && h("section", { class: "panel", "aria-label": "Reader schema" }, h("h2", {}, "Reader schema"),
      h("pre", { tabindex: "0" }, pretty(schema.reader_schema))));
  return () => {};
}

function facts(schema) {
  const rows = [
    ["topic", h("code", {}, schema.topic)],
    ["format", schema.framing ? `${schema.format}, framing ${schema.framing}` : schema.format],
    ["id of an event", h("code", {}, schema.id_field)],
    ["time of an event", h("code", {}, schema.time_field)],
    ["Kafka key", h("code", {}, schema.key_field)],
  ];
  return table("Records", [
    { head: "what", cell: ([what]) => what },
    { head: "value", cell: ([, value]) => value },
  ], rows);
}

function fields(schema) {
  return table("Fields", [
    { head: "field", cell: (each) => h("code", {}, each.path) },
    { head: "type", cell: (each) => h("code", {}, each.type.startsWith("struct<") ? "struct" : each.type) },  // its fields follow
    { head: "used by", cell: (each) => each.views.map((view, number) => [number ? ", " : "", h("a", { href: `#/views/${encodeURIComponent(view)}` }, view)]) },
    { head: "required", cell: (each) => (each.required ? "yes" : "") },
    { head: "default", cell: (each) => (each.default === null ? "" : h("code", {}, each.default)) },
    { head: "other names", cell: (each) => each.aliases.join(", ") },
  ], schema.fields);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
