// Nodes, their GPUs, and the grants on each GPU.

import { h } from "../dom.js";
import { age, bytes, percent } from "../format.js";
import { badge, facts, link, List, sparkline, table, to, tones } from "../parts.js";
import { ask } from "../store.js";
import { detections } from "./others.js";
import { BARS, gpuBar, holderCell, holders, sums, whole } from "./overview.js";

const list = { current: null };
const MAX_BARS = 16;

const stateOf = (node) => (node.state === "Ready" && node.cordoned ? "cordoned" : node.state);

// Cards by type, how many of them are cut into MIG instances, and how many are not healthy.
function kinds(gpus) {
  const cards = new Map();
  const cut = new Set();
  const sick = new Map();
  for (const gpu of gpus) {
    cards.set(gpu.parent || gpu.name, (gpu.type || "?").replace(/ MIG .*$/, ""));
    if (gpu.parent) cut.add(gpu.parent);
    if (gpu.health && gpu.health !== "healthy") sick.set(gpu.parent || gpu.name, gpu.health);
  }
  const counts = new Map();
  for (const type of cards.values()) counts.set(type, (counts.get(type) || 0) + 1);
  const text = [...counts].map(([type, number]) => `${number} × ${type}`).join(", ") || "–";
  const notes = cut.size ? [`${cut.size} in MIG mode`] : [];
  for (const health of new Set(sick.values())) notes.push(`${[...sick.values()].filter((one) => one === health).length} ${health}`);
  return notes.length ? [text, h("span", { class: "small" }, notes.join(", "))] : text;
}

export function nodes(app) {
  const { store, query } = app;
  const wanted = (query.get("q") || "").toLowerCase();
  const state = query.get("state") || "";
  const byNode = new Map();
  for (const gpu of store.all("Gpu")) {
    if (!byNode.has(gpu.node)) byNode.set(gpu.node, []);
    byNode.get(gpu.node).push(gpu);
  }
  const found = store
    .all("Node")
    .filter((one) => (!state || stateOf(one) === state) && (!wanted || one.name.toLowerCase().includes(wanted) || (byNode.get(one.name) || []).some((gpu) => (gpu.type || "").toLowerCase().includes(wanted))))
    .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const held = holders(store);
  list.current ||= new List("Nodes", ["node", "state", "GPUs", "memory granted", "time granted", "time achieved", "memory by holder"], () => (app.narrow ? 132 : 48), () => app.redraw());
  return [
    h("h1", null, "Nodes"),
    h(
      "form",
      { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      h("label", null, "Name or type ", h("input", { type: "search", value: query.get("q") || "", on: { input: (event) => app.filter({ q: event.target.value }) } })),
      h("label", null, "State ", h("select", { value: state, on: { change: (event) => app.filter({ state: event.target.value }) } }, ["", "Ready", "cordoned", "Away", "Lost"].map((one) => h("option", { key: one, value: one }, one || "any")))),
      h("output", null, `${found.length} of ${store.size("Node")}`),
    ),
    h("p", { class: "hint" }, BARS),
    list.current.view(
      found,
      (node) => {
        const gpus = (byNode.get(node.name) || []).sort((a, b) => a.index - b.index);
        const total = sums(gpus);
        return {
          key: node.name,
          cells: [
            link(`nodes/${to(node.name)}`, node.name),
            badge(stateOf(node)),
            kinds(gpus),
            percent(total.given / (total.memory || 1)),
            percent(gpus.length ? total.share / gpus.length : undefined),
            percent(total.measured ? total.busy / total.measured : undefined),
            h("span", { class: "bars" }, gpus.slice(0, MAX_BARS).map((gpu) => h("span", { key: gpu.name }, gpuBar(gpu, held.get(gpu.name) || [])))),
          ],
        };
      },
      "No node has reported, or nodes are not visible to you.",
    ),
  ];
}

const histories = new Map();

function history(app, uuid) {
  const known = histories.get(uuid);
  if (!known || Date.now() - known.at > 15000) {
    const kept = { at: Date.now(), found: known ? known.found : null };
    histories.set(uuid, kept);
    if (histories.size > 64) histories.delete(histories.keys().next().value);
    ask("history", { gpu: uuid })
      .then((found) => {
        kept.found = found;
        app.redraw();
      })
      .catch(() => {});
  }
  return known ? known.found : null;
}

const LINES = [
  ["utilization", "GPU time achieved", "line0"],
  ["used", "memory in use", "line1"],
  ["given", "memory granted", "line2"],
  ["throttled", "time throttled", "line3"],
];

export function lines(app, name) {
  const found = history(app, name);
  if (!found) return h("p", { class: "hint" }, "Loading the last hour…");
  const shown = LINES.filter(([figure]) => found.series[figure]);
  if (!shown.length) return h("p", { class: "hint" }, "No samples in the last hour.");
  return h(
    "div",
    { class: "lines" },
    shown.map(([figure, label, tone]) => {
      const values = found.series[figure];
      const now = [...values].reverse().find((one) => one !== null);
      return h("figure", { key: figure }, sparkline(values, `${label} over the last hour, now ${percent(now)}`, tone), h("figcaption", null, `${label}: ${percent(now)}`));
    }),
  );
}

export function node(app, name) {
  const { store } = app;
  const found = store.get("Node", "", name);
  if (!found) return app.missing("Node", name);
  const held = holders(store);
  const gpus = store.all("Gpu").filter((one) => one.node === name).sort((a, b) => a.index - b.index);
  const onNode = app.session.site === "node";
  return [
    h("h1", null, name, " ", badge(stateOf(found))),
    facts([
      ["version", found.version],
      ["driver", found.driver],
      ["GPUs", kinds(gpus)],
      ["scheduling", found.cordoned ? "disabled (cordoned)" : undefined],
      ["last connected", found.seen ? `${age(found.seen)} ago` : undefined],
      ["labels", found.labels ? h("span", { class: "labels" }, Object.entries(found.labels).map(([key, value]) => h("code", { key }, `${key}=${value}`))) : undefined],
    ]),
    onNode ? null : h("p", null, link(`object/Node//${to(name)}`, "YAML")),
    onNode ? null : detections(app, name),
    gpus.length ? h("p", { class: "hint" }, `${BARS} The lines show the last hour.`) : null,
    gpus.map((gpu) =>
      h(
        "section",
        { key: gpu.name, class: "card", "aria-labelledby": `g-${gpu.name}` },
        h("h2", { id: `g-${gpu.name}` }, `GPU ${gpu.index} · ${gpu.type || "?"} `, badge(gpu.health), gpu.profile ? [" ", badge(`MIG ${gpu.profile}`)] : null),
        gpuBar(gpu, held.get(gpu.name) || []),
        facts([
          ["memory", `${bytes(gpu.given || 0)} granted, ${bytes(gpu.used)} in use, of ${bytes(gpu.memory)}`],
          ["GPU time", `${percent(gpu.share)} granted, ${percent(gpu.utilization)} achieved`],
          ["grants", `${gpu.grants || 0} of ${gpu.slots}`],
          ["other use", gpu.outside || gpu.outsideShare ? [h("span", { class: "swatch outside", "aria-hidden": "true" }), `${bytes(gpu.outside || 0)}, ${percent(gpu.outsideShare || 0)}`] : undefined],
          ["why", gpu.why],
          ["temperature", gpu.celsius === undefined ? undefined : `${gpu.celsius} °C`],
          ["power", gpu.watts === undefined ? undefined : `${gpu.watts} W`],
          ["context switch", gpu.switch === undefined ? undefined : `${gpu.switch} µs, as its grants measured it`],
          ["UUID", h("code", null, gpu.name)],
          ["part of", gpu.parent ? h("code", null, gpu.parent) : undefined],
          ["NUMA node", gpu.numa],
          ["PCI", gpu.bus],
        ]),
        lines(app, gpu.name),
        grantTable(app, held.get(gpu.name) || [], gpu),
      ),
    ),
  ];
}

// A figure that is measured for all GPUs of a grant together, as that of one of them.
function mean(format, value, size) {
  return size > 1 && value !== undefined ? [format(value / size), h("span", { class: "small" }, ` mean of ${size}`)] : format(value);
}

export function grantTable(app, held, gpu) {
  const onNode = app.session.site === "node";
  const colours = tones(held.map((one) => one.who));
  return table(
    `Grants on GPU ${gpu.index}`,
    [onNode ? "grant" : "holder", "memory granted", "in use", "share granted", "achieved", "throttled", "state", "since"],
    held.map(({ who, memory, share, profile, work }) => ({
      key: `${work.ns}/${work.name}`,
      cells: [
        [h("span", { class: `swatch ${colours.get(who)}`, "aria-hidden": "true" }), onNode ? link(`grants/${to(work.ns, work.name)}`, who) : holderCell(work)],
        profile ? `MIG ${profile}` : bytes(memory),
        mean(bytes, work.used, whole(work).size),
        work.policy === "elastic" ? "weighted" : percent(share),
        mean(percent, work.achieved, whole(work).size),
        work.throttled === undefined ? "–" : percent(work.throttled),
        badge(work.state),
        age(work.since),
      ],
    })),
    "No grants on this GPU.",
    "aligned",
  );
}
