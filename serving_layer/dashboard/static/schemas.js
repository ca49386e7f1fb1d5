// What a description says of a value: its type in words, what is allowed, and its members to unfold.

import { h } from "./dom.js";
import { folded, marked } from "./tables.js";

const DEEPEST = 8;

/** Follows the references of a description: {$ref: "#/components/schemas/View"} -> what is there. */
export function resolver(description) {
  return (given) => {
    let found = given;
    for (let step = 0; found?.$ref && step < DEEPEST; step += 1) {
      found = found.$ref.split("/").slice(1).reduce((node, name) => node?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], description);
    }
    return found ?? {};
  };
}

/** "integer or null", "array of page_hits_row". A schema that has a name is called by it. */
export function typeText(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const choices = choicesOf(schema);
  const kinds = choices.length ? choices.map(typeText) : [schema.type ?? []].flat().map((kind) => {
    if (kind === "array") return schema.items ? `array of ${inner(schema.items)}` : kind;
    if (kind === "object" && isSchema(schema.additionalProperties)) return `map of ${inner(schema.additionalProperties)}`;
    return kind === "string" && schema.format ? `${kind} (${schema.format})` : kind;
  });
  return [...new Set(kinds)].join(" or ") || "anything";
}

function inner(schema) {
  const text = typeText(schema);
  return text.includes(" or ") ? `(${text})` : text;
}

function choicesOf(schema) {
  return schema.anyOf ?? schema.oneOf ?? [];
}

function isSchema(value) {
  return typeof value === "object" && value !== null;
}

/** What else holds of a value: [["allowed", ["json", "csv"]], ["default", ["json"]]]. */
function factsOf(schema, examples) {
  const single = schema.items && !schema.items.$ref ? schema.items : schema;
  return [
    ["allowed", single.enum],
    ["default", "default" in schema ? [schema.default] : null],
    ["range", range(single.minimum, single.maximum)],
    ["how many", schema.maxItems === undefined ? null : range(schema.minItems ?? 0, schema.maxItems)],
    ["values", schema.uniqueItems ? ["each once"] : null],
    ["pattern", single.pattern ? [single.pattern] : null],
    ["example", examples ?? schema.examples],
  ].filter(([, values]) => values?.length);
}

// Bounds of 64 bits cannot be shown: the browser has rounded them by now.
function range(least, most) {
  const isShown = (bound) => bound !== undefined && Math.abs(bound) <= Number.MAX_SAFE_INTEGER;
  if (isShown(least) && isShown(most)) return [`${least} to ${most}`];
  if (isShown(least)) return [`${least} or more`];
  return isShown(most) ? [`${most} or less`] : null;
}

function literal(value) {
  return h("code", { class: "value" }, typeof value === "string" && value ? value : JSON.stringify(value));
}

/** A value in two lines: its name and type; what it means, and what is allowed. */
export function valueRow(name, schema, resolve, { notes = [], description, examples } = {}) {
  const found = resolve(schema), text = description ?? found.description;
  const facts = factsOf(found, examples);
  return [
    h("span", { class: "value-head" }, name, " ", h("span", { class: "type" }, typeText(schema)), notes.map((note) => h("span", { class: "note" }, ` · ${note}`))),
    (text || facts.length > 0) && h("span", { class: "value-text" }, text && h("span", {}, marked(text)),
      facts.map(([label, values]) => h("span", { class: "fact" }, ` ${label} `, values.map((each, index) => [index ? ", " : "", literal(each)])))),
  ];
}

/** The members of an object, or of the objects in a list; those that have members themselves can be unfolded. */
export function memberList(schema, resolve) {
  return h("ul", { class: "members" }, partsOf(schema, resolve).map((part) => {
    const name = part.name === undefined ? h("i", {}, part.label) : h("code", { class: "name" }, part.name);
    const row = valueRow(name, part.schema, resolve, { notes: part.isRequired ? ["required"] : [] });
    return h("li", {}, hasParts(part.schema, resolve) ? folded(row, () => memberList(part.schema, resolve), { className: "member" }) : row);
  }));
}

export function hasParts(schema, resolve) {
  return partsOf(schema, resolve).length > 0;
}

/** The parts of a schema, one level deep: `name`, or where it has none a `label`. */
function partsOf(given, resolve, depth = 0) {
  if (depth > DEEPEST) return [];
  const schema = resolve(given);
  const below = (each) => partsOf(each, resolve, depth + 1);
  const choices = choicesOf(schema).filter((each) => below(each).length);
  if (choices.length === 1) return below(choices[0]);
  if (choices.length) return choices.map((each, index) => ({ label: index ? "or" : "either", schema: each }));
  if (schema.items) return below(schema.items);
  const named = Object.entries(schema.properties ?? {}).map(([name, each]) => ({ name, schema: each, isRequired: schema.required?.includes(name) }));
  const others = schema.additionalProperties;
  return isSchema(others) && below(others).length ? [...named, { label: "under any name", schema: others }] : named;
}
