// Elements shared by several pages.

import { h } from "./dom.js";

const NO_FLAVOR = /^couldn't assign flavors to pod set [^:]+: /;

// The reason why a workload is pending, for lists: without the words with which most reasons begin.
export function brief(workload) {
  return (workload.message || workload.reason || "").replace(NO_FLAVOR, "");
}

export function link(path, ...text) {
  return h("a", { href: `#/${path}` }, ...text);
}

export function to(...parts) {
  return parts.map((one) => encodeURIComponent(one)).join("/");
}

const TONES = {
  Running: "good", Admitted: "good", Ready: "good", healthy: "good", running: "good", active: "good",
  Pending: "wait", QuotaReserved: "wait", Paused: "wait", Away: "wait", suspect: "wait", paused: "wait", spilling: "wait", spilled: "wait", returning: "wait", decided: "wait", warning: "wait", Preempted: "wait",
  cordoned: "wait", reserved: "wait", starting: "wait", terminating: "wait", pending: "wait", recovering: "wait",
  Lost: "bad", Held: "bad", Deleting: "bad", lost: "bad", unhealthy: "bad", critical: "bad", draining: "bad", Evicted: "bad",
};

export function badge(text) {
  return h("span", { class: `badge ${TONES[text] || ""}` }, text);
}

// Parts of a whole as one bar; [{ratio, tone}]. The label is for users who cannot see colours.
export function bar(parts, label, mark) {
  let left = 0;
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": label, title: label },
    parts.map((one, at) => {
      const width = Math.max(0, Math.min(1 - left, one.ratio || 0));
      const style = { left: `${(left * 100).toFixed(2)}%`, width: `${(width * 100).toFixed(2)}%` };
      left += width;
      if (!width) return null;
      return h("span", { key: at, class: `part ${one.tone}`, style });
    }),
    mark === undefined ? null : h("span", { class: "mark", style: { left: `clamp(1.5px, ${(Math.min(1, mark) * 100).toFixed(2)}%, 100% - 1.5px)` } }),
  );
}

const COLOURS = 8;

// A colour for each of these names: its own wherever it is shown, unless another one here has that; a colour is
// there twice only if there are more names than colours.
export function tones(names) {
  const found = new Map();
  const free = new Set();
  for (const name of names) {
    if (found.has(name)) continue;
    if (!free.size) for (let colour = 0; colour < COLOURS; colour += 1) free.add(colour);
    let sum = 0;
    for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % COLOURS;
    while (!free.has(sum)) sum = (sum + 1) % COLOURS;
    free.delete(sum);
    found.set(name, `who${sum}`);
  }
  return found;
}

export function tile(label, value, note) {
  return h("div", { class: "tile" }, h("div", { class: "value" }, value), h("div", { class: "label" }, label), note ? h("div", { class: "note" }, note) : null);
}

export function facts(rows) {
  const known = rows.filter((row) => row[1] !== undefined && row[1] !== null && row[1] !== "" && row[1].length !== 0);
  return known.length ? h("dl", { class: "facts" }, known.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value)))) : null;
}

// `kind` is a CSS class of the container; `aligned` gives tables below each other the same columns.
export function table(caption, heads, rows, empty = "none", kind = "") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: `scroll ${kind}`, tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, heads.map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", null, rows.map((row) => h("tr", { key: row.key }, row.cells.map((cell) => h("td", null, cell))))),
    ),
  );
}

export function sparkline(values, label, tone_ = "line0") {
  const width = 240;
  const height = 40;
  const runs = [];
  let run = [];
  values.forEach((value, at) => {
    if (value === null) {
      if (run.length) runs.push(run);
      run = [];
    } else run.push(`${((at / (values.length - 1)) * width).toFixed(1)},${(height - 2 - Math.min(1, value) * (height - 4)).toFixed(1)}`);
  });
  if (run.length) runs.push(run);
  return h(
    "svg",
    { class: `spark ${tone_}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    runs.map((points) => (points.length > 1 ? h("polyline", { points: points.join(" ") }) : h("rect", { x: Math.max(0, points[0].split(",")[0] - 3), y: points[0].split(",")[1], width: "3", height: "3" }))),
  );
}

// A list of any length: only the visible rows are in the document. `row(item, index)` returns the cells.
export class List {
  constructor(label, heads, height, redraw) {
    this.label = label;
    this.heads = heads;
    this.height = height;
    this.redraw = redraw;
    this.top = 0;
    this.seen = 600;
  }

  view(items, row, empty) {
    const height = this.height();
    const first = Math.max(0, Math.floor(this.top / height) - 6);
    const last = Math.min(items.length, Math.ceil((this.top + this.seen) / height) + 6);
    const shown = [];
    for (let at = first; at < last; at += 1) {
      const { key, cells } = row(items[at], at);
      shown.push(
        h("div", { key, class: "row", role: "row", "aria-rowindex": at + 2, style: { top: `${at * height}px`, height: `${height}px` } }, cells.map((cell, column) => h("div", { class: "cell", role: "cell", "data-head": this.heads[column] }, cell))),
      );
    }
    return h(
      "div",
      { class: `list cols${this.heads.length}`, role: "table", "aria-label": this.label, "aria-rowcount": items.length + 1 },
      h("div", { role: "rowgroup" }, h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, this.heads.map((one) => h("div", { class: "cell", role: "columnheader" }, one)))),
      h(
        "div",
        { class: "window", role: "rowgroup", tabindex: "0", "aria-label": `${this.label}, rows`, on: { scroll: (event) => this.scrolled(event.currentTarget) } },
        h("div", { class: "whole", role: "presentation", style: { height: `${items.length * height}px` } }, shown),
        items.length ? null : h("p", { class: "empty", role: "row" }, h("span", { role: "cell" }, empty || "none")),
      ),
    );
  }

  scrolled(el) {
    this.top = el.scrollTop;
    this.seen = el.clientHeight || this.seen;
    this.redraw();
  }
}
