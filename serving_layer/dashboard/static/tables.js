// Tables of rows, problems in words, and small pieces that pages share.

import { fill, h } from "./dom.js";
import { Offline, Problem } from "./api.js";

/** A table. `columns`: {head, cell(row), isNumber, title(row)}. Cells are texts or elements. */
export function table(caption, columns, rows, { empty = "Nothing.", className = "" } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: className },
      h("caption", { class: "only-read" }, caption),
      h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col", class: each.isNumber ? "number" : each.className }, each.head || h("span", { class: "only-read" }, "as a bar"))))),
      h("tbody", {}, rows.map((row) => h("tr", { class: row.className },
        columns.map((each) => h("td", { class: each.isNumber ? "number" : each.className, title: each.title?.(row) }, each.cell(row))))))));
}

/** The value of a key: a text as it is, whatever is in it; null looks different from a text. */
export function keyValue(value) {
  if (value === null) return h("i", { class: "null" }, "null");
  if (value === "") return h("i", { class: "null" }, "empty text");
  return h("bdi", { class: "value" }, String(value));
}

/** What went wrong, with what to do. */
export function failure(error) {
  if (error instanceof Offline) return h("div", { class: "failure", role: "alert" }, h("strong", {}, "No answer. "), "The server cannot be reached.");
  if (!(error instanceof Problem)) throw error;
  const heads = { "not-computed-yet": "Not computed yet. ", "too-large": "The query is too large. ", "bad-parameter": "Invalid parameter. ", "unknown-view": "No such view. ", "not-allowed": "Not for this key. " };
  return h("div", { class: "failure", role: "alert" }, h("strong", {}, heads[error.kind] ?? "No answer. "), error.message);
}

/** A labelled control. */
export function field(label, control, className = "") {
  return h("label", { class: `field ${className}` }, h("span", {}, label), control);
}

export function choice(label, values, chosen, onChange, text = String) {
  return field(label, h("select", { onchange: (event) => onChange(event.target.value) },
    values.map((each) => h("option", { value: each, selected: String(each) === String(chosen) }, text(each)))));
}

/** Something to unfold. `build` gives what is in it, once it is opened. */
export function folded(summary, build, { className = "", onToggle = () => {} } = {}) {
  const inside = h("div", { class: "inside" });
  const make = () => { if (!inside.hasChildNodes()) fill(inside, build()); };
  // A click comes before it is open and the toggle some time after, when a quick Tab has gone past already.
  const element = h("details", { class: className, ontoggle: () => { if (element.open) make(); onToggle(element.open); } },
    h("summary", { onclick: make }, summary), inside);
  return element;
}

/** A text with `code` in it. */
export function marked(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/** A text of several paragraphs, some of which are lists. */
export function prose(text) {
  return text.trim().split(/\n\s*\n/).map((part) => {
    const lines = part.split("\n");
    if (!lines.every((line) => line.startsWith("- "))) return h("p", {}, marked(part));
    return h("ul", {}, lines.map((line) => h("li", {}, marked(line.slice(2)))));
  });
}

/** Put a text on the clipboard and say so by the button itself. */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      const box = h("textarea", { class: "only-read", value: text() });
      document.body.append(box);
      box.select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Could not copy";
      box.remove();
    }
    setTimeout(() => { button.textContent = label; }, 1_500);
  }
  return button;
}

/** The colours of batch and speed. */
export function legend({ run, hasPrevious = false, hasBands = "" } = {}) {
  return h("ul", { class: "legend" },
    h("li", {}, h("span", { class: "swatch batch" }), run ? `confirmed by run ${run}` : "confirmed by a run"),
    h("li", {}, h("span", { class: "swatch speed" }), "provisional: since the cut, from the speed layer"),
    hasBands && h("li", {}, h("span", { class: "swatch band" }), hasBands),
    hasPrevious && h("li", {}, h("span", { class: "swatch before" }), "previous period"));
}
