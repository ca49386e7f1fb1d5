// Light or dark: as the system has it, or as chosen here.

import { h, say } from "./dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const SIGNS = { auto: "◐", light: "○", dark: "●" };
const KEPT = "tidemark-theme";

function chosen() {
  try { return localStorage.getItem(KEPT) ?? "auto"; } catch { return "auto"; }
}

function apply(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

apply(chosen());

/** The button that changes it. */
export function themeButton() {
  let theme = chosen();
  const button = h("button", { type: "button", class: "quiet sign", onclick: turn });
  function show() {
    say(button, SIGNS[theme]);
    button.title = NAMES[theme];
    button.setAttribute("aria-label", `${NAMES[theme]}. Change it`);
  }
  function turn() {
    theme = NEXT[theme];
    try { localStorage.setItem(KEPT, theme); } catch { /* for this page alone, then */ }
    apply(theme);
    show();
  }
  show();
  return button;
}
