// What the page says by itself: that the server is away, that it is back, that an alert fires.

import { h, say } from "./dom.js";

const SHOWN_MS = 6_000;
let away = false, probe = 0;

/** A short message at the edge of the page. `kind`: "good", "bad" or nothing. */
export function notice(text, { kind = "", link = null, stays = false } = {}) {
  const close = h("button", { class: "close", type: "button", "aria-label": "Dismiss", onclick: () => box.remove() }, "×");
  const box = h("div", { class: `notice ${kind}` }, h("span", {}, text, link && [" ", link]), close);
  document.getElementById("notices").append(box);
  if (!stays) setTimeout(() => box.remove(), SHOWN_MS);
}

export function disconnected() {
  const bar = document.getElementById("connection");
  say(bar, "The server does not answer. These are the last numbers it sent. Retrying …");
  bar.hidden = false;
  document.documentElement.classList.add("is-away");
  if (away) return;
  away = true;
  probe = setInterval(probeHealth, 1_000);
}

export function connected() {
  if (!away) return;
  away = false;
  clearInterval(probe);
  document.getElementById("connection").hidden = true;
  document.documentElement.classList.remove("is-away");
  notice("Connected again. The numbers are live.", { kind: "good" });
}

async function probeHealth() {
  try {
    if ((await fetch("/health", { cache: "no-store" })).ok) connected();
  } catch { /* not yet */ }
}
