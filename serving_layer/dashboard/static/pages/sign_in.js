// Sign in with a key. The secret goes to the server once, and stays nowhere in the page.

import { fill, h } from "../dom.js";
import { post } from "../api.js";
import { failure, field } from "../tables.js";

export function show(main, onSignedIn) {
  const name = h("input", { name: "username", autocomplete: "username", required: true, value: "admin", spellcheck: "false" });
  const secret = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const problem = h("div", {});
  const button = h("button", { class: "primary" }, "Sign in");
  const form = h("form", { class: "sign-in", onsubmit: submit },
    h("h1", {}, "Sign in"),
    h("p", { class: "quiet-text" }, "One number, right and fresh. Sign in with an access key that may ask."),
    field("Key", name), field("Secret", secret), button, problem,
    h("p", { class: "hint" }, h("code", {}, "tidemark up"), " showed the first key once. Another one: ", h("code", {}, "tidemark keys add NAME --scope query")));

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const session = await post("/session", { name: name.value.trim(), secret: secret.value.trim() });
      secret.value = "";
      onSignedIn(session);
    } catch (error) {
      fill(problem, failure(error));
      button.disabled = false;
      secret.focus();
    }
  }

  fill(main, form);
  document.title = "Sign in · Tidemark";
  (name.value ? secret : name).focus();
}
