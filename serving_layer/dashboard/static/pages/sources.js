// Sources: what their records look like, and which views use a field.

import { fill, h } from "../dom.js";
import { get } from "../api.js";
import { choice, table } from "../tables.js";

export async function show(main, { session, query }) {
  const { sources } = await get("/sources");
  if (!sources.length) {
    fill(main, h("h1", {}, "Sources"), h("p", { class: "empty" }, "There is no source that this key may see."));
    return () => {};
  }
  const names = sources.map((each) => each.name);
  const name = names.includes(query.get("source")) ? query.get("source") : names[0];
  const { schema } = await get(`/sources/${encodeURIComponent(name)}`);
  const subjects = await subjectsOf(schema, session);
  fill(main,
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, names.length > 1 ? "Sources" : `Source ${name}`),
      h("p", { class: "doc" }, "What the records of a source look like, and which views use each field.")),
      names.length > 1 && choice("Source", names, name, (next) => { location.hash = `#/sources?source=${encodeURIComponent(next)}`; })),
    schema.pending && h("section", { class: "panel", "aria-label": "Next version" }, h("h2", {}, `Version ${schema.pending.version} is to follow`), pending(schema.pending)),
    h("section", { class: "panel", "aria-label": "Records" }, h("h2", {}, "Records"), facts(schema, subjects)),
    h("section", { class: "panel", "aria-label": "Fields" }, h("h2", {}, "Fields"), fields(schema)),
    schema.reader_schema && h("section", { class: "panel", "aria-label": "Reader schema" }, h("h2", {}, "Reader schema"),
      h("pre", { tabindex: "0" }, pretty(schema.reader_schema))),
    schema.writer_schemas.length > 0 && h("section", { class: "panel", "aria-label": "Writer schemas" }, h("h2", {}, "Writer schemas"), writers(schema)));
  return () => {};
}

function pending({ changes, adopted, refused }) {
  if (refused) return h("p", { class: "failure" }, refused);
  return [h("p", {}, adopted ? "A batch run switches to it now." : "The next batch run switches to it."),
    h("ul", {}, changes.map((each) => h("li", {}, each)))];
}

function writers(schema) {
  return table("Writer schemas", [
    { head: "schema", cell: (each) => h("code", {}, each.schema) },
    { head: "type", cell: (each) => each.type ?? "" },
    { head: "known", cell: (each) => (!each.known ? "no: its records are dead letters" : each.since === null ? "yes" : `yes, from ${Object.entries(each.since).map((pair) => pair.join(":")).join(", ")}`) },
  ], schema.writer_schemas);
}

// The subjects that the registry has, of those that serializers may have used; all of them where it cannot say.
async function subjectsOf(schema, session) {
  const all = schema.subjects.map((name) => ({ name, link: false }));
  if (!session.reads_schemas || !all.length) return all;
  try {
    const known = new Set((await get("/schemas")).subjects.map((each) => each.subject));
    const there = all.filter((each) => known.has(each.name)).map((each) => ({ ...each, link: true }));
    return there.length ? there : all;
  } catch {
    return all;
  }
}

function subject({ name, link }) {
  const shown = h("code", {}, name);
  return link ? h("a", { href: `#/schemas/${encodeURIComponent(name)}` }, shown) : shown;
}

function facts(schema, subjects) {
  const rows = [
    ["version", schema.version],
    ["topic", h("code", {}, schema.topic)],
    ["format", schema.framing ? `${schema.format}, framing ${schema.framing}` : schema.format],
    schema.envelope && ["envelope", schema.envelope],
    ...subjects.map((each) => ["subject", subject(each)]),
    ["id of an event", h("code", {}, schema.id_field)],
    ["time of an event", h("code", {}, schema.time_field)],
    ["Kafka key", h("code", {}, schema.key_field)],
  ];
  return table("Records", [
    { head: "what", cell: ([what]) => what },
    { head: "value", cell: ([, value]) => value },
  ], rows.filter(Boolean));
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
