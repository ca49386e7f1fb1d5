// The API: every request that this key can make, from the description that the server makes of its declarations.

import { addressWriter, debounced, fill, h, say } from "../dom.js";
import { get } from "../api.js";
import { curlOf } from "../query.js";
import { number } from "../format.js";
import { hasParts, memberList, resolver, typeText, valueRow } from "../schemas.js";
import { copyButton, field, folded, marked, prose } from "../tables.js";
import { tryForm } from "./try_it.js";

const METHODS = ["get", "post", "put", "patch", "delete", "head", "options", "trace"];
const QUIET_MS = 150;

export async function show(main, { session, rest, query }) {
  const writeAddress = addressWriter();
  const description = await get("/openapi.json");
  if (!main.isConnected) return () => {};  // another page was chosen meanwhile, and the address is its own
  const resolve = resolver(description), left = new AbortController();
  const operations = operationsOf(description, resolve);
  const search = h("input", { type: "search", value: query.get("q") ?? "", placeholder: "query, alerts, cursor …", spellcheck: "false", autocomplete: "off", oninput: debounced(QUIET_MS, narrow) });
  const count = h("p", { class: "fresh", role: "status" });
  const nothing = h("p", { class: "empty" }, "No request has all of these words.");
  const sections = groupsOf(description, operations).map(({ name, doc, own }) => ({
    own, element: h("section", { class: "panel", "aria-label": name }, h("h2", {}, name), doc && h("div", { class: "quiet-text prose" }, prose(doc)), own.map(drawn)),
  }));
  let opened = rest[0] ?? null;

  function drawn(operation) {
    operation.element = folded(titleOf(operation), () => bodyOf(operation, resolve, session, left.signal), {
      className: "operation", onToggle: (isOpen) => { if (isOpen) keep(operation.id); else if (opened === operation.id) keep(null); },
    });
    return operation.element;
  }

  /** The address holds the search text and the request that was opened last. */
  function keep(id) {
    if (left.signal.aborted) return;
    opened = id;
    const words = search.value.trim(), path = id ? `#/api/${encodeURIComponent(id)}` : "#/api";
    writeAddress(words ? `${path}?${new URLSearchParams({ q: words })}` : path);
  }

  function narrow() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const each of operations) each.element.hidden = !words.every((word) => each.text.includes(word));
    for (const { element, own } of sections) element.hidden = own.every((each) => each.element.hidden);
    const found = operations.filter((each) => !each.element.hidden).length;
    say(count, found === operations.length ? `${number(found)} requests` : `${number(found)} of ${number(operations.length)} requests`);
    nothing.hidden = found > 0;
    keep(opened);
  }

  fill(main,
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "API"), h("div", { class: "doc prose" }, prose(description.info.description ?? "")), count),
      h("div", { class: "controls finding" }, field("Search", search), h("a", { class: "quiet", href: "/openapi.json", download: "openapi.json" }, "openapi.json"))),
    nothing, sections.map(({ element }) => element));
  narrow();
  const named = operations.find((each) => each.id === opened);
  if (named) {
    named.element.open = true;
    named.element.scrollIntoView();
  }
  return () => left.abort();
}

// ---- what there is -------------------------------------------------------------

function operationsOf(description, resolve) {
  return Object.entries(description.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) => {
    const operation = item[method], summary = operation.summary ?? "", tag = operation.tags?.[0] ?? "others";
    const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map(resolve);
    const words = [method, path, tag, summary, operation.description ?? "", ...parameters.flatMap((each) => [each.name, each.description ?? ""])];
    return { ...operation, method, path, summary, tag, parameters, id: operation.operationId ?? `${method} ${path}`, text: words.join(" ").toLowerCase(),
      needsKey: (operation.security ?? description.security ?? []).length > 0 };
  }));
}

function groupsOf(description, operations) {
  const docs = new Map((description.tags ?? []).map((each) => [each.name, each.description]));
  const names = new Set([...docs.keys(), ...operations.map((each) => each.tag)]);
  return [...names].map((name) => ({ name, doc: docs.get(name), own: operations.filter((each) => each.tag === name) })).filter(({ own }) => own.length);
}

// ---- one request ---------------------------------------------------------------

function titleOf({ method, path, summary }) {
  return [h("span", { class: `method ${method}` }, method.toUpperCase()), h("code", { class: "path" }, path), h("span", { class: "summary" }, marked(summary))];
}

function bodyOf(operation, resolve, session, signal) {
  const { method, path, summary, description = "", parameters, requestBody, responses } = operation, title = `${method.toUpperCase()} ${path}`;
  const more = description.startsWith(summary) ? description.slice(summary.length) : description;
  return [
    more.trim() && h("div", { class: "prose" }, prose(more)),
    !operation.needsKey && h("p", { class: "hint" }, "It needs no key."),
    method === "get" && folded("Try it", () => tryForm(operation, resolve, session, signal), { className: "try" }),
    parameters.length > 0 && [h("h3", {}, "Parameters"),
      h("ul", { class: "members", "aria-label": `Parameters of ${title}` }, parameters.map((each) => h("li", {}, parameterRow(each, resolve))))],
    requestBody && [h("h3", {}, "Body"), contents(resolve(requestBody).content, resolve), sending(operation, resolve, session)],
    h("h3", {}, "Answers"),
    h("ul", { class: "members", "aria-label": `Answers of ${title}` }, Object.entries(responses).map(([status, each]) => h("li", {}, responseOf(status, resolve(each), resolve)))),
  ];
}

function parameterRow({ name, in: where, required, schema = {}, description, example, examples }, resolve) {
  const given = example === undefined ? Object.values(examples ?? {}).map((each) => resolve(each).value) : [example];
  return valueRow(h("code", { class: "name" }, name), schema, resolve, {
    notes: [`in ${where}`, ...(required ? ["required"] : [])], description, examples: given.length ? given : undefined,
  });
}

function responseOf(status, { description, headers = {}, content }, resolve) {
  return [
    h("span", { class: "value-head" }, h("code", { class: "name" }, status === "default" ? "otherwise" : status), " ", description),
    Object.entries(headers).map(([name, each]) => h("div", { class: "header" }, valueRow(h("code", { class: "name" }, name), resolve(each).schema ?? {}, resolve, { notes: ["header"], description: resolve(each).description }))),
    contents(content, resolve),
  ];
}

/** What a body can be: of each media type its members, and examples. */
function contents(content = {}, resolve) {
  return Object.entries(content).map(([media, operation]) => {
    const { schema = {} } = operation, head = [h("code", {}, media), " ", h("span", { class: "type" }, typeText(schema))];
    return h("div", { class: "content" },
      hasParts(schema, resolve) ? folded(head, () => memberList(schema, resolve)) : h("p", {}, head),
      examplesOf(operation, resolve).map((value) => folded("Example", () => h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2)))));
  });
}

/** The examples of a body, or of what it can be. */
function examplesOf({ schema = {}, example, examples }, resolve) {
  if (example !== undefined) return [example];
  if (examples) return Object.values(examples).map((each) => resolve(each).value);
  const found = resolve(schema);
  return found.examples ?? (found.anyOf ?? found.oneOf ?? []).flatMap((each) => resolve(each).examples ?? []);
}

/** A request that has a body, for a terminal, where there is an example of the body. */
function sending({ path, method, requestBody }, resolve, session) {
  const [body] = Object.values(resolve(requestBody).content ?? {}).flatMap((each) => examplesOf(each, resolve));
  const options = method === "post" ? [] : [`-X ${method.toUpperCase()}`];
  return body !== undefined && h("div", { class: "actions" }, copyButton("Copy as curl", () => curlOf(path, session.key, { body, options })));
}
