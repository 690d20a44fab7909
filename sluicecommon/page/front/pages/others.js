// Flavors, topology, events and detections, an object's YAML, and what-if.

import { h } from "../dom.js";
import { bytes, percent, time } from "../format.js";
import { badge, link, table, to } from "../parts.js";
import { act, ask } from "../store.js";
import { sums } from "./overview.js";

export function flavors(app) {
  const nodes = app.store.all("Node");
  const found = app.store.all("ResourceFlavor").sort((a, b) => (a.name < b.name ? -1 : 1));
  return [
    h("h1", null, "Flavors"),
    table(
      "ResourceFlavors",
      ["flavor", "node labels", "nodes", "taints", "topology", ""],
      found.map((one) => ({
        key: one.name,
        cells: [
          one.name,
          h("span", { class: "labels" }, Object.entries(one.labels || {}).map(([key, value]) => h("code", { key }, `${key}=${value}`))),
          String(nodes.filter((node) => Object.entries(one.labels || {}).every(([key, value]) => (node.labels || {})[key] === value)).length),
          (one.taints || []).join(", "),
          one.topology ? link(`topology?name=${encodeURIComponent(one.topology)}`, one.topology) : "",
          link(`object/ResourceFlavor//${to(one.name)}`, "YAML"),
        ],
      })),
      "No flavors visible to you.",
    ),
  ];
}

export function topology(app) {
  const { store } = app;
  const found = store.all("Topology").sort((a, b) => (a.name < b.name ? -1 : 1));
  const byNode = new Map();
  for (const gpu of store.all("Gpu")) byNode.set(gpu.node, [...(byNode.get(gpu.node) || []), gpu]);
  const level = (nodes, levels) => {
    const [label, ...rest] = levels;
    const groups = new Map();
    for (const node of nodes) {
      const value = label === "kubernetes.io/hostname" ? node.name : (node.labels || {})[label];
      if (value !== undefined) groups.set(value, [...(groups.get(value) || []), node]);
    }
    return h(
      "ul",
      { class: "tree" },
      Array.from(groups.entries()).sort((a, b) => (a[0] < b[0] ? -1 : 1)).slice(0, 200).map(([value, members]) => {
        const total = sums(members.flatMap((one) => byNode.get(one.name) || []));
        const free = `${bytes(total.memory - total.given)} of ${bytes(total.memory)} free on ${members.length} node${members.length === 1 ? "" : "s"}`;
        return h("li", { key: value }, rest.length ? h("details", null, h("summary", null, h("strong", null, value), ` ${free}`), level(members, rest)) : h("span", null, members.length === 1 ? link(`nodes/${to(members[0].name)}`, value) : value, ` ${free}`));
      }),
    );
  };
  return [
    h("h1", null, "Topology"),
    found.length ? null : h("p", { class: "empty" }, "No topologies visible to you."),
    found.map((one) => h("section", { key: one.name, "aria-label": `Topology ${one.name}` }, h("h2", null, one.name), h("p", { class: "small" }, one.levels.join(" › ")), level(store.all("Node"), one.levels), h("p", null, link(`object/Topology//${to(one.name)}`, "YAML")))),
  ];
}

export function events(app) {
  const onNode = app.session.site === "node";
  const text = (app.query.get("q") || "").toLowerCase();
  const level = app.query.get("level") || "";
  const all = app.store.all("Event");
  const found = all
    .filter((one) => (!level || one.level === level) && (!text || `${one.kind} ${one.subject || ""} ${one.text}`.toLowerCase().includes(text)))
    .sort((a, b) => (a.name < b.name ? 1 : -1));
  return [
    h("h1", null, onNode ? "Detections and events" : "Events"),
    h(
      "form",
      { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      h("label", null, "Text ", h("input", { type: "search", value: app.query.get("q") || "", on: { input: (event) => app.filter({ q: event.target.value }) } })),
      onNode ? h("label", null, "Level ", h("select", { value: level, on: { change: (event) => app.filter({ level: event.target.value }) } }, ["", "info", "warning", "critical"].map((one) => h("option", { key: one, value: one }, one || "any")))) : null,
      h("output", null, `${found.length} of ${all.length}`),
    ),
    onNode ? contained(app) : detections(app),
    onNode ? null : h("p", { class: "hint" }, "Decisions and their results since this page was first opened; each workload's page has its full history."),
    table(
      "Events, newest first",
      onNode ? ["time", "level", "kind", "description", "evidence"] : ["time", "event", "object", "details"],
      found.slice(0, 300).map((one) => ({
        key: one.name,
        cells: onNode
          ? [time(one.at), badge(one.level), one.kind, one.text, evidence(one)]
          : [time(one.at), badge(one.kind), one.subject, one.text],
      })),
      "No events yet.",
    ),
  ];
}

const MAX_DETECTIONS = 300;

const evidence = (one) => (one.evidence ? h("code", null, Object.entries(one.evidence).map(([key, value]) => `${key}=${value}`).join(" ")) : "");

/** Detections of all nodes, or of the node that is named. */
export function detections(app, node = "") {
  const all = app.store.all("Detection").filter((one) => !node || one.node === node);
  if (!all.length) return null;
  const found = all.sort((a, b) => b.at - a.at || (a.name < b.name ? 1 : -1)).slice(0, MAX_DETECTIONS);
  const workloadLink = (one) => (one.workload ? link(`workloads/${to(...one.workload.split("/"))}`, one.workload) : "");
  return h(
    "section",
    { "aria-labelledby": "e-detections" },
    h("h2", { id: "e-detections" }, "Detections"),
    table(
      "GPU use outside Sluice that nodes detected, newest first",
      ["time", ...(node ? [] : ["node"]), "level", "rule", "description", "workload", "evidence"],
      found.map((one) => ({
        key: one.name,
        cells: [time(one.at), ...(node ? [] : [link(`nodes/${to(one.node)}`, one.node)]), badge(one.level), one.kind, one.text, workloadLink(one), evidence(one)],
      })),
    ),
    h("p", { class: "hint" }, `${all.length > found.length ? `${all.length - found.length} older detections are not shown. ` : ""}The newest 32 of each node since it last connected; \`sluice events\` on the node shows more.`),
  );
}

function contained(app) {
  const held = app.store.all("Held");
  if (!held.length) return null;
  return h("section", { "aria-label": "Held now" }, h("h2", null, "Held now"), table("Processes held because of a detection", ["number", "step", "rule", "process", "since", "evidence"], held.map((one) => ({ key: one.name, cells: [one.name, badge(one.step), one.rule, one.whom, time(one.since), h("code", null, one.evidence)] }))));
}

const objects = new Map();

export function object(app, kind, namespace, name) {
  const key = `${kind}/${namespace}/${name}`;
  let known = objects.get(key);
  if (!known || Date.now() - known.at > 30000) {
    known = { at: Date.now(), text: known ? known.text : "", error: "" };
    objects.set(key, known);
    if (objects.size > 32) objects.delete(objects.keys().next().value);
    const now = known;
    ask("object", { kind, namespace, name })
      .then((found) => (now.text = found.yaml))
      .catch((error) => (now.error = error.message))
      .finally(() => app.redraw());
  }
  return [
    h("h1", null, `${kind} ${namespace ? `${namespace}/` : ""}${name}`),
    known.error ? h("p", { class: "error" }, known.error) : h("pre", { class: "yaml", tabindex: "0", role: "region", "aria-label": "YAML" }, known.text || "Loading…"),
    known.text ? h("button", { type: "button", on: { click: () => navigator.clipboard.writeText(known.text) } }, "Copy") : null,
  ];
}

const play = { text: null, for: "", busy: false, found: null, error: "" };
const EXAMPLE = `# A job that does not exist yet: would it start, and what would it displace?
apiVersion: kueue.x-k8s.io/v1beta1
kind: Workload
metadata: {name: what-if, namespace: default}
spec:
  queueName: main
  podSets:
  - name: main
    count: 1
    template:
      spec:
        containers:
        - name: c
          resources: {requests: {nvidia.com/gpu: 1, nvidia.com/gpumem: 16384}}
`;

export function whatif(app) {
  const kind = app.query.get("kind") || "";
  const name = app.query.get("name") || "";
  if (play.text === null || play.for !== `${kind}/${name}`) {
    play.for = `${kind}/${name}`;
    play.text = kind ? "" : EXAMPLE;
    if (kind) {
      ask("object", { kind, name })
        .then((found) => (play.text = found.yaml.replace(/\nstatus:[\s\S]*$/, "\n")))
        .catch((error) => (play.text = `# ${error.message}\n`))
        .finally(() => app.redraw());
    }
  }
  if (!app.session.rights.whatif) return [h("h1", null, "What if"), h("p", { class: "empty" }, "A what-if simulates all workloads: it requires the right to see all of them.")];
  const go = async (event) => {
    event.preventDefault();
    Object.assign(play, { busy: true, error: "", found: null });
    app.redraw();
    try {
      play.found = await act("whatif", { yaml: play.text });
    } catch (error) {
      play.error = error.message;
    }
    play.busy = false;
    app.redraw();
  };
  return [
    h("h1", null, "What if"),
    h("p", null, "Write objects as they would be: a ClusterQueue with another quota, a job that does not exist yet, an additional Node. The same scheduler simulates the whole queue twice, without and with the change. Each simulation starts from empty nodes, with all running and pending workloads submitted at once in their order. Nothing is changed in the real queue."),
    h("form", { on: { submit: go } }, h("label", null, "Objects, as YAML", h("textarea", { class: "yaml", rows: "18", spellcheck: "false", value: play.text, on: { input: (event) => (play.text = event.target.value) } })), h("button", { type: "submit", class: "main", disabled: play.busy }, play.busy ? "Simulating…" : "Simulate")),
    h("div", { role: "status" }, play.error ? h("p", { class: "error" }, play.error) : play.found ? result(play.found) : null),
  ];
}

function result(found) {
  return [
    h("h2", { key: "h" }, `${found.admittedBefore} would run without the change, ${found.admittedAfter} with it`),
    h("h3", { key: "s" }, `Starts: ${found.starts.length}`),
    h("ul", { key: "sl" }, found.starts.map((one) => h("li", { key: one }, one))),
    h("h3", { key: "t" }, `No longer runs: ${found.stops.length}`),
    h("ul", { key: "tl" }, found.stops.map((one) => h("li", { key: one.name }, `${one.name}: ${one.why}`))),
    found.stillWaits.length ? [h("h3", { key: "w" }, "Pending for another reason"), h("ul", { key: "wl" }, found.stillWaits.map((one) => h("li", { key: one.name }, `${one.name}: ${one.after}`)))] : null,
    found.gpusAfter ? h("p", { key: "f" }, "Fragmentation after: ", Object.entries(found.gpusAfter).map(([name, value]) => `${name} ${percent(value)}`).join(", ")) : null,
    found.notes.map((one) => h("p", { key: one, class: "hint" }, one)),
  ];
}
