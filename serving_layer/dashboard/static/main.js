// The shell: who is signed in, which page is shown, and alerts wherever one is.

import { Offline, Problem, get, remove } from "./api.js";
import { fill, h, every } from "./dom.js";
import { themeButton } from "./theme.js";
import { failure } from "./tables.js";
import { watchAlerts } from "./pages/alerts.js";
import * as alerts from "./pages/alerts.js";
import * as explore from "./pages/explore.js";
import * as lambda from "./pages/lambda.js";
import * as overview from "./pages/overview.js";
import * as reference from "./pages/reference.js";
import * as sources from "./pages/sources.js";
import * as subjects from "./pages/subjects.js";
import * as signIn from "./pages/sign_in.js";
import * as view from "./pages/view.js";

const PAGES = { "": overview, lambda, sources, schemas: subjects, explore, alerts, api: reference, views: view };
const NAMES = { "": "overview", lambda: "lambda", sources: "sources", schemas: "schemas", explore: "explore", alerts: "alerts", api: "api", views: "overview" };
const RETRY_MS = 2_000;

let main = document.getElementById("main");
let session = null, leave = () => {}, endAlerts = () => {}, shown = null, turn = 0;

async function start() {
  try {
    session = await get("/session");
    signedIn();
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return signedOut();
    fill(main, failure(error));
    if (error instanceof Offline || error.status >= 500) setTimeout(start, RETRY_MS);
  }
}

function signedIn() {
  document.getElementById("nav").hidden = false;
  document.getElementById("schemas").hidden = !session.reads_schemas;
  fill(document.getElementById("who"), themeButton(),
    session.key && [h("span", { class: "key", title: "The key that you signed in with" }, session.key),
      session.ends && h("button", { type: "button", class: "quiet", onclick: signOut }, "Sign out")]);
  endAlerts();
  endAlerts = watchAlerts();
  route();
}

function signedOut() {
  session = null;
  nextTurn();
  leave();
  leave = () => {};
  shown = null;
  endAlerts();
  document.getElementById("nav").hidden = true;
  fill(document.getElementById("who"), themeButton());
  signIn.show(main, (found) => { session = found; signedIn(); });
}

async function signOut() {
  await remove("/session").catch(() => {});
  signedOut();
}

/** Begin a sheet that shows what the old one did: a page that is still on its way draws on the old, which nobody sees. */
function nextTurn() {
  const old = main;
  main = old.cloneNode();
  main.append(...old.childNodes);
  old.replaceWith(main);
  return turn += 1;
}

/** Show the page that the address names: #/views/page_hits?range=7d. */
async function route() {
  if (!session) return;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  if (path === "main") return;  // the link that skips the navigation
  const page = PAGES[name] ?? overview;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === NAMES[name]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave();
  leave = () => {};
  const own = nextTurn();
  const isOther = shown !== path;
  shown = path;
  try {
    const ended = await page.show(main, { session, rest, query: new URLSearchParams(query) });
    if (own !== turn) return ended();
    leave = ended;
  } catch (error) {
    if (own !== turn) return;
    fill(main, h("h1", {}, "Tidemark"), failure(error));
    if (error instanceof Offline || error.status >= 500) leave = retryWhenThere();
  }
  document.title = `${main.querySelector("h1")?.textContent ?? "Overview"} · Tidemark`;
  if (isOther) main.focus({ preventScroll: true });
}

function retryWhenThere() {
  const end = every(RETRY_MS, async () => {
    if (await get("/session").catch(() => null)) { end(); route(); }
  });
  return end;
}

document.addEventListener("signed-out", () => { if (session) signedOut(); });
window.addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
start();
