// Actions: offered if the service permits them to the viewer, confirmed in a dialog, and their result shown.

import { h } from "./dom.js";
import { act, ask } from "./store.js";

const known = new Map();

export function actionsOf(app, doc, kind = doc.kind_) {
  const key = `${kind}/${doc.ns}/${doc.name}`;
  let found = known.get(key);
  if (!found) {
    found = { verbs: [], words: {} };
    known.set(key, found);
    ask("may", { kind, namespace: doc.ns, name: doc.name })
      .then((answer) => {
        found.verbs = answer.verbs;
        found.words = answer.words;
        app.redraw();
      })
      .catch(() => known.delete(key));
    setTimeout(() => known.delete(key), 60000);
  }
  const held = Boolean(doc.held || doc.stop);
  const shown = found.verbs.filter((verb) => [null, held].includes(found.words[verb].held));
  if (!shown.length) return null;
  return h(
    "div",
    { class: "actions", role: "group", "aria-label": "Actions" },
    shown.map((verb) => h("button", { key: verb, type: "button", on: { click: () => begin(app, verb, found.words[verb], kind, doc) } }, found.words[verb].title, "…")),
  );
}

function begin(app, verb, words, kind, doc) {
  app.dialog = { verb, words, kind, namespace: doc.ns, name: doc.name, doc, result: "", busy: false, done: false };
  app.redraw();
  document.querySelector("dialog").showModal();
}

export function dialog(app) {
  const now = app.dialog;
  const gone = () => {
    if (document.querySelector("dialog").open) return; // It was reopened before the close event arrived.
    app.dialog = null;
    app.redraw();
  };
  const close = () => {
    document.querySelector("dialog").close();
    gone();
  };
  if (!now) return h("dialog", { "aria-label": "Confirmation", on: { close: gone } });
  const { title, meaning, fields } = now.words;
  const carry = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target).entries());
    now.busy = true;
    app.redraw();
    try {
      const answer = await act(now.verb, { kind: now.kind, namespace: now.namespace, name: now.name, ...given });
      now.result = `Done: ${answer.done}. It is recorded in the audit trail.`;
      now.done = true;
    } catch (error) {
      now.result = `Failed: ${error.message}`;
    }
    now.busy = false;
    app.redraw();
  };
  return h(
    "dialog",
    { "aria-label": `${title} ${now.kind} ${now.name}`, on: { close: gone } },
    h(
      "form",
      { method: "dialog", on: { submit: carry } },
      h("h2", null, `${title}: ${now.kind} ${now.namespace ? `${now.namespace}/` : ""}${now.name}?`),
      h("p", null, meaning),
      now.done ? null : fields.map((one) => h("label", { key: one.name }, `${one.label} `, h("input", { name: one.name, autocomplete: "off", inputmode: one.mode }))),
      h("p", { role: "status" }, now.result),
      h(
        "div",
        { class: "actions" },
        now.done ? null : h("button", { key: "do", type: "submit", class: "main", disabled: now.busy }, title),
        h("button", { key: "no", type: "button", on: { click: close } }, now.done ? "Close" : "Cancel"),
      ),
    ),
  );
}
