// Try a GET: a form of its parameters, and its answer with status, time and headers.

import { announce, fill, h, say } from "../dom.js";
import { Offline, address, ask, texts } from "../api.js";
import { curlOf } from "../query.js";
import { indented } from "../format.js";
import { copyButton, failure, field } from "../tables.js";

const MAX_SHOWN = 200_000;
const STREAM = "text/event-stream";
const HIDDEN_HEADERS = new Set(["date", "server"]);
const TAG = { name: "If-None-Match", in: "header", schema: { type: "string" }, description: "An ETag that you have: the answer is 304 while it still holds." };

/** The form of an operation. What it asked ends with `signal`. */
export function tryForm(operation, resolve, session, signal) {
  const parameters = operation.responses["304"] ? [...operation.parameters, TAG] : operation.parameters;
  const fields = parameters.map((parameter) => ({ parameter, control: controlOf(parameter, resolve(parameter.schema ?? {})) }));
  const answer = h("section", { class: "tried", "aria-label": `Answer to GET ${operation.path}`, hidden: true });
  const stop = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => running.abort() }, "Stop");
  const isStream = STREAM in (operation.responses["200"]?.content ?? {});
  let running = null;

  function request() {
    const given = fields.flatMap(({ parameter, control }) => valuesOf(control).map((value) => ({ name: parameter.name, where: parameter.in, value })));
    const of = (where) => given.filter((each) => each.where === where).map(({ name, value }) => [name, value]);
    const inPath = new Map(of("path"));
    const path = operation.path.replace(/\{([^}]+)\}/g, (_, name) => encodeURIComponent(inPath.get(name) ?? ""));
    return { path: address(path, of("query")), headers: of("header") };
  }

  async function submit(event) {
    event?.preventDefault();
    running?.abort();
    const own = running = new AbortController(), { path, headers } = request(), began = performance.now();
    let found = null;
    stop.hidden = false;
    try {
      found = await ask(path, { headers: { Accept: "*/*", ...Object.fromEntries(headers) }, cache: "no-store", signal: AbortSignal.any([signal, own.signal]) });
      await drawAnswer(answer, path, found, began, again);
    } catch (error) {
      if (own !== running || signal.aborted) return;  // nobody waits for it any more
      if (!own.signal.aborted) fill(answer, failure(error));
      else if (found) answer.append(h("p", { class: "hint" }, "Stopped."));
      else fill(answer, h("p", { class: "hint" }, "Stopped before there was an answer."));
      answer.hidden = false;
    }
    if (own === running) stop.hidden = true;
  }

  const tag = fields.find(({ parameter }) => parameter === TAG)?.control;
  const again = tag && ((etag) => { tag.value = etag; submit(); });
  const form = h("form", { class: "compose", onsubmit: submit, "aria-label": `Try GET ${operation.path}` },
    fields.length > 0 && h("div", { class: "controls" }, fields.map(({ parameter, control }) => field(parameter.name, control))),
    h("div", { class: "actions" }, h("button", { class: "primary" }, "Send"), stop,
      copyButton("Copy as curl", () => { const { path, headers } = request(); return curlOf(path, session.key, { headers, options: isStream ? ["-N"] : [] }); })));
  return [form, answer];
}

// ---- the question --------------------------------------------------------------

function controlOf({ in: where, required, description, style = "form", explode = style === "form", example }, schema) {
  const shared = { title: description, required };
  const values = schema.enum ?? (schema.type === "boolean" ? ["true", "false"] : null);
  if (values) return h("select", shared, [...(required ? [] : [""]), ...values].map((each) => h("option", { value: each }, each === "" ? "–" : each)));
  const typed = { ...shared, spellcheck: "false", autocomplete: "off" };
  if (schema.type === "array" && explode) return h("textarea", { ...typed, rows: 1, placeholder: "one a line" });
  return h("input", { ...typed, pattern: where === "header" && "[\\x20-\\x7e]*", placeholder: schema.default ?? example ?? schema.items?.enum?.slice(0, 2) });
}

/** What a control holds: of a list each line, else one text, or nothing. */
function valuesOf(control) {
  const lines = control instanceof HTMLTextAreaElement ? control.value.split("\n") : [control.value.trim()];
  return lines.filter(Boolean);
}

// ---- the answer ----------------------------------------------------------------

async function drawAnswer(element, path, answer, began, again) {
  const media = answer.headers.get("content-type") ?? "", etag = answer.headers.get("etag");
  const isStream = media.startsWith(STREAM), title = `${answer.status} ${answer.statusText}`.trim();
  const time = h("span", {}), body = h("pre", { tabindex: "0", role: "region", "aria-label": "Body of the answer", hidden: true });
  const more = h("p", { class: "hint", hidden: true }, "There is more than is shown here: Copy as curl gives all of it.");
  const took = () => say(time, ` after ${Math.round(performance.now() - began)} ms`);
  took();
  fill(element, h("p", { class: "status" }, h("strong", { class: answer.status < 400 ? "good-text" : "bad-text" }, title), time),
    h("pre", { tabindex: "0" }, `GET ${path}`),
    h("dl", { class: "facts" }, [...answer.headers].filter(([name]) => !HIDDEN_HEADERS.has(name)).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    etag && again && answer.status === 200 && h("div", { class: "actions" }, h("button", { type: "button", class: "quiet", onclick: () => again(etag) }, "Send again with this ETag")),
    body, more);
  element.hidden = false;
  announce(`The answer is ${title}.`);
  let text = "";
  const show = (shown) => { say(body, shown); body.hidden = !shown; };
  for await (const part of safely(answer)) {
    text += part;
    if (isStream) show(text = text.slice(-MAX_SHOWN));
  }
  if (isStream) return;
  took();
  const whole = /[/+]json/.test(media) ? indented(text) : text;
  show(whole.slice(0, MAX_SHOWN));
  more.hidden = whole.length <= MAX_SHOWN;
}

/** The text of an answer. One that breaks off is like none, unless we ended it ourselves. */
async function* safely(answer) {
  try {
    yield* texts(answer);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Offline("The answer broke off.");
  }
}
