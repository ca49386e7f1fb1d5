// Requests to the serving layer. The session is a cookie that no script can read; no key is ever in an address.

import { connected, disconnected } from "./notices.js";

const HEADERS = { "X-Requested-With": "dashboard", Accept: "application/json" };

/** What the server refused, in its own words (RFC 9457). */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.kind = (body.type ?? "").split(":").pop();
    this.body = body;
  }
}

/** The server could not be reached at all. */
export class Offline extends Error {}

export async function get(path, parameters) {
  return request("GET", address(path, parameters));
}

export async function post(path, body) {
  return request("POST", path, body);
}

export async function remove(path) {
  return request("DELETE", path);
}

/** A path with its query string. */
export function address(path, parameters) {
  const query = new URLSearchParams(parameters ?? []).toString();
  return query ? `${path}?${query}` : path;
}

/** The path of something of a view. */
export function pathOf(view, what = "") {
  return `/views/${encodeURIComponent(view)}${what}`;
}

async function request(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await ask(path, { method, headers, body: body && JSON.stringify(body) });
  if (answer.status === 204) return null;
  const reply = await answer.json().catch(() => ({}));
  if (answer.ok) return reply;
  throw new Problem(answer.status, reply);
}

/** The answer itself, whatever its status: with headers, and a body still to be read. `options` are those of fetch. */
export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options, headers: { ...HEADERS, ...options.headers } });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    disconnected();
    throw new Offline("The server does not answer.");
  }
  connected();
  if (answer.status === 401) document.dispatchEvent(new Event("signed-out"));
  return answer;
}

/** The text of an answer, piece by piece as it comes. */
export async function* texts(answer) {
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/** Server-sent events by fetch, which unlike EventSource tells why it ended. Resolves when the stream ends. */
export async function stream(path, onEvent, signal, last = "") {
  const known = last ? { "Last-Event-ID": last } : {};
  const answer = await fetch(path, { headers: { ...HEADERS, ...known, Accept: "text/event-stream" }, signal });
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  let rest = "";
  for await (const text of texts(answer)) {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = fields(block);
      if (found.data) onEvent(found.event ?? "message", JSON.parse(found.data), found.id ?? "");
    }
  }
}

function fields(block) {
  const found = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) found[line.slice(0, at)] = line.slice(at + 2);
  }
  return found;
}
