// Elements from plain values. Text is always a text node: nothing that an event carries can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("a", {href: "#/", onclick: go}, "text", [more, elements]). */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same inside a picture. */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each))));
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** The same, without disturbing people at work: the focus stays on what has it, and scroll positions stay. */
export function refill(element, ...children) {
  const able = () => [...element.querySelectorAll("button, a[href], [tabindex]")];
  const scrollers = () => [...element.querySelectorAll(".scrolls")];
  const at = able().indexOf(document.activeElement), scrolled = scrollers().map((each) => each.scrollLeft);
  fill(element, ...children);
  if (at >= 0) able()[at]?.focus({ preventScroll: true });
  scrollers().forEach((each, index) => { if (scrolled[index]) each.scrollLeft = scrolled[index]; });
}

/** Set a text only where it changed, so that screen readers and selections are left alone. Returns whether it did. */
export function say(element, text) {
  if (element.textContent === text) return false;
  element.textContent = text;
  return true;
}

/** Announce a text to screen readers. */
export function announce(text) {
  say(document.getElementById("announcement"), text);
}

/** Call `tick` now and every so often while the page is visible; returns a function that ends it. */
export function every(ms, tick) {
  let ended = false, timer = 0, running = false;
  const go = async () => {
    clearTimeout(timer);
    if (ended || running || document.hidden) return;
    running = true;
    try { await tick(); } finally { running = false; }
    if (!ended) timer = setTimeout(go, ms);
  };
  const seen = () => { if (!document.hidden) go(); };
  document.addEventListener("visibilitychange", seen);
  go();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}

/** Call `work` once things have been quiet for a moment. */
export function debounced(ms, work) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}

/**
 * Returns a function that writes what a page shows into the address, while the address is the page's own. Call it before
 * anything is awaited: once another address was chosen, its `hashchange` is on the way, and must find it there.
 */
export function addressWriter() {
  let own = location.hash;
  return (next) => {
    if (location.hash !== own) return;
    history.replaceState(null, "", next);
    own = location.hash;
  };
}
