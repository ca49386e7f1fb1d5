// Alerts: what fires now and what fired before; a new one is announced on every page.

import { every, fill, h, refill, say } from "../dom.js";
import { Offline, Problem, get, stream } from "../api.js";
import { ago, moment, number } from "../format.js";
import { failure, keyValue, table } from "../tables.js";
import { notice } from "../notices.js";
import { shown } from "../values.js";

const REFRESH_MS = 3_000;
const WAIT_MS = 3_000;

const newest = new EventTarget();

/** Follow the alerts until the returned function is called: a notice for each that fires or resolves. */
export function watchAlerts() {
  const ended = new AbortController();
  let current = null, last = "";

  function onEvent(event, episode, id) {
    last = id || last;
    if (event === "alert") announceEpisode(episode);
  }

  async function go() {
    while (!ended.signal.aborted) {
      if (!document.hidden) {
        current = new AbortController();
        const stop = () => current.abort();
        ended.signal.addEventListener("abort", stop);
        try {
          await count();
          await stream("/alerts/live", onEvent, current.signal, last);
        } catch (error) {
          if (error instanceof Problem && [401, 403, 404].includes(error.status)) return;  // none are declared, or not for us
        }
        ended.signal.removeEventListener("abort", stop);
      }
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }

  const onVisibility = () => { if (document.hidden) current?.abort(); };
  document.addEventListener("visibilitychange", onVisibility);
  go();
  return () => { ended.abort(); document.removeEventListener("visibilitychange", onVisibility); };
}

async function count() {
  const { alerts } = await get("/alerts");
  badge(alerts.reduce((sum, each) => sum + (each.firing?.length ?? 0), 0));
}

function announceEpisode(episode) {
  newest.dispatchEvent(new CustomEvent("episode", { detail: episode }));
  count().catch(() => {});
  if (episode.state === "pending") return;
  const isFiring = episode.state === "firing";
  notice(`${episode.alert} ${isFiring ? "fires" : "is resolved"}: ${keyText(episode.key)} ${valueText(episode.value)}`, {
    kind: isFiring ? "bad" : "good", stays: isFiring, link: h("a", { href: "#/alerts" }, "Alerts"),
  });
}

function badge(firing) {
  const element = document.getElementById("firing");
  say(element, firing ? number(firing) : "");
  element.hidden = !firing;
  if (firing) element.setAttribute("aria-label", `${firing} firing`);
}

function keyText(key) {
  return Object.entries(key ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
}

function valueText(value) {
  const found = Object.entries(value ?? {}).map(([name, each]) => `${name} ${shown(each)}`).join(", ");
  return found && `(${found})`;
}

export async function show(main) {
  const problem = h("div", {}), list = h("div", { class: "alerts" }), past = h("div", {});
  fill(main, h("h1", {}, "Alerts"), problem, list, h("section", { class: "panel", "aria-label": "History" }, h("h2", {}, "History"), past));
  async function refresh() {
    try {
      const [{ alerts }, { episodes }] = await Promise.all([get("/alerts"), get("/alerts/history", [["limit", "50"]])]);
      fill(problem);
      if (!alerts.length) return none();
      badge(alerts.reduce((sum, each) => sum + (each.firing?.length ?? 0), 0));
      refill(list, alerts.map(alertBox));
      drawHistory(past, episodes);
    } catch (error) {
      if (error instanceof Problem && error.status === 404) none();
      else if (!(error instanceof Offline)) fill(problem, failure(error));
    }
  }
  function none() {
    fill(problem, h("div", { class: "empty" }, h("p", {}, h("strong", {}, "No alerts are declared.")),
      h("p", {}, "An alert is declared beside a view, once:"),
      h("pre", {}, 'many_attempts = Alert("many_attempts", card_attempts, when="attempts > 3")')));
    fill(list);
    past.parentElement.hidden = true;
  }
  const now = () => refresh();
  newest.addEventListener("episode", now);
  const end = every(REFRESH_MS, refresh);
  return () => { end(); newest.removeEventListener("episode", now); };
}

function alertBox(alert) {
  const state = alert.muted_until ? "muted" : alert.state;
  const names = { ok: "ok", pending: "pending", firing: "firing", muted: "muted" };
  const now = [...(alert.firing ?? []), ...(alert.pending ?? []).map((each) => ({ ...each, isPending: true }))];
  return h("section", { class: `panel alert ${state}`, "aria-label": alert.name },
    h("div", { class: "panel-head" }, h("h2", {}, alert.name), h("span", { class: `tag state-${state}` }, names[state] ?? state)),
    alert.doc && h("p", { class: "quiet-text" }, alert.doc),
    h("p", { class: "quiet-text" }, h("a", { href: `#/views/${encodeURIComponent(alert.view)}` }, alert.view), " where ", h("code", {}, alert.when),
      alert.by?.length ? ` by ${alert.by.join(", ")}` : "", lasting(alert.for), alert.muted_until ? ` · muted until ${moment(alert.muted_until, "UTC")} UTC` : ""),
    now.length ? table(`${alert.name}, now`, [
      { head: "key", cell: (each) => keys(each.key) },
      { head: "value", cell: (each) => valueText(each.value) || "–" },
      { head: "since", cell: (each) => ago(each.since) },
      { head: "state", cell: (each) => (each.isPending ? "pending" : "firing") },
    ], now) : null);
}

function lasting(given) {
  if (typeof given === "number") return given > 1 ? ` for ${given} buckets` : "";
  return given ? ` for ${given}` : "";
}

function keys(key) {
  const parts = Object.entries(key ?? {});
  return parts.length ? parts.map(([name, value]) => h("span", { class: "pair" }, `${name} `, keyValue(value))) : "all";
}

function drawHistory(element, episodes) {
  element.parentElement.hidden = false;
  refill(element, table("Episodes, the newest first", [
    { head: "alert", cell: (each) => each.alert },
    { head: "key", cell: (each) => keys(each.key) },
    { head: "state", cell: (each) => h("span", { class: `tag state-${each.state}` }, each.state) },
    { head: "fired", cell: (each) => (each.fired_at ? ago(each.fired_at) : "–") },
    { head: "resolved", cell: (each) => (each.resolved_at ? ago(each.resolved_at) : "–") },
    { head: "value", cell: (each) => valueText(each.value) || "–" },
  ], episodes, { empty: "Nothing has fired yet." }));
}
