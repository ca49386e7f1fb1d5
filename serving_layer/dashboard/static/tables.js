// Tables of rows, problems in words, and small pieces that pages share.

import { h } from "./dom.js";
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

/** The value of a key: a text as it is, whatever is in it; null is told from a text. */
export function keyValue(value) {
  if (value === null) return h("i", { class: "null" }, "null");
  if (value === "") return h("i", { class: "null" }, "empty text");
  return h("bdi", { class: "value" }, String(value));
}

/** What went wrong, with what to do. */
export function failure(error) {
  if (error instanceof Offline) return h("div", { class: "failure", role: "alert" }, h("strong", {}, "No answer. "), "The server cannot be reached.");
  if (!(error instanceof Problem)) throw error;
  const heads = { "not-computed-yet": "Not computed yet. ", "too-large": "Too large a question. ", "bad-parameter": "That cannot be asked. ", "unknown-view": "No such view. " };
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

/** The colours of the two sides. */
export function legend({ run, hasPrevious = false, hasBands = "" } = {}) {
  return h("ul", { class: "legend" },
    h("li", {}, h("span", { class: "swatch batch" }), run ? `confirmed by run ${run}` : "confirmed by a run"),
    h("li", {}, h("span", { class: "swatch speed" }), "provisional: since the cut, from the speed layer"),
    hasBands && h("li", {}, h("span", { class: "swatch band" }), hasBands),
    hasPrevious && h("li", {}, h("span", { class: "swatch before" }), "previous period"));
}
