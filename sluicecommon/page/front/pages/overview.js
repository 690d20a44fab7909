// Overview: use of GPUs and queues, and alerts.

import { h } from "../dom.js";
import { age, bytes, count, percent, time } from "../format.js";
import { badge, bar, brief, link, table, tile, to, tone } from "../parts.js";

const MAX_GPUS = 400;
const MAX_QUEUES = 12;

export const BARS = "One bar per GPU: a colour for each holder of its memory; the mark is the memory in use.";

export function gpuBar(gpu, work) {
  const total = gpu.memory || 1;
  const parts = work.map((one) => ({ ratio: one.memory / total, tone: tone(one.who), label: one.who }));
  if (gpu.outside) parts.push({ ratio: gpu.outside / total, tone: "outside", label: "outside the queue" });
  const held = work.map((one) => `${one.who} ${bytes(one.memory)}`).join(", ") || "no grants";
  const used = gpu.used === undefined ? "" : `, ${bytes(gpu.used)} in use`;
  const label = `GPU ${gpu.index} of ${gpu.node}: ${bytes(gpu.given || 0)} of ${bytes(gpu.memory)} granted (${held})${used}, ${gpu.health}`;
  return bar(parts, label, gpu.used === undefined ? undefined : gpu.used / total);
}

// Who holds a grant: a workload of the queue, else a pod, else the grant's own name.
export function holder(work) {
  if (work.workload) return work.workload;
  return work.pod ? `${work.ns}/${work.pod}` : work.name;
}

// Grants by the GPU that they are on.
export function holders(store) {
  const found = new Map();
  for (const one of store.all("Work")) {
    for (const [uuid, memory, share, profile] of one.gpus || []) {
      if (!found.has(uuid)) found.set(uuid, []);
      found.get(uuid).push({ who: holder(one), memory, share, profile, work: one });
    }
  }
  return found;
}

export function sums(gpus) {
  const total = { memory: 0, given: 0, used: 0, known: 0, share: 0, busy: 0, measured: 0, well: 0 };
  for (const one of gpus) {
    total.memory += one.memory || 0;
    total.given += one.given || 0;
    total.share += one.share || 0;
    if (one.used !== undefined) {
      total.used += one.used;
      total.known += one.memory || 0;
    }
    if (one.utilization !== undefined) {
      total.busy += one.utilization;
      total.measured += 1;
    }
    if (one.health === "healthy") total.well += 1;
  }
  return total;
}

// GPUs that give new grants and have none, and nothing else in use on them.
function idle(gpus) {
  return gpus.filter((one) => one.health === "healthy" && !one.grants && !one.outside && !(one.used > 1 << 30));
}

const WAITING = new Set(["Pending", "QuotaReserved", "Paused"]);
const MAX_ROWS = 6;
const UNUSED = 0.5;
const SETTLED_S = 120;

function longestPending(workloads) {
  return workloads
    .filter((one) => WAITING.has(one.phase))
    .sort((a, b) => (a.created || 0) - (b.created || 0))
    .slice(0, MAX_ROWS);
}

// Grants that use less than half of their guaranteed time and of their memory, the largest unused memory first.
function unused(store) {
  const now = Date.now() / 1000;
  const found = [];
  for (const one of store.all("Work")) {
    if (one.state !== "running" || one.used === undefined || (one.since && now - one.since < SETTLED_S)) continue;
    const memory = (one.gpus || []).reduce((sum, [, bytes_]) => sum + bytes_, 0);
    const share = (one.gpus || []).reduce((sum, [, , ratio]) => sum + (ratio || 0), 0);
    const busy = one.achieved === undefined ? 0 : one.achieved;
    if (memory && one.used < memory * UNUSED && busy < (share || 1) * UNUSED) found.push({ one, memory, share });
  }
  return found.sort((a, b) => b.memory - b.one.used - (a.memory - a.one.used)).slice(0, MAX_ROWS);
}

export function alerts(store) {
  const found = [];
  for (const node of store.all("Node")) {
    if (node.state && node.state !== "Ready") found.push({ key: `n${node.name}`, text: ["Node ", link(`nodes/${to(node.name)}`, node.name), ` is ${node.state.toLowerCase()}`], badge: node.state });
    if (node.nvml) found.push({ key: `e${node.name}`, text: `The GPUs of ${node.name} cannot be read: ${node.nvml}`, badge: "critical" });
  }
  for (const gpu of store.all("Gpu")) {
    if (gpu.health && gpu.health !== "healthy") found.push({ key: `g${gpu.name}`, text: ["GPU ", String(gpu.index), " of ", link(`nodes/${to(gpu.node)}`, gpu.node), ` is ${gpu.health}${gpu.why ? `: ${gpu.why}` : ""}`], badge: gpu.health });
  }
  for (const queue of store.all("ClusterQueue")) {
    if (queue.why) found.push({ key: `q${queue.name}`, text: ["ClusterQueue ", link(`clusterqueues/${to(queue.name)}`, queue.name), `: ${queue.why}`], badge: "warning" });
  }
  const lately = Date.now() / 1000 - 3600;
  const noticed = new Map();
  for (const one of store.all("Detection")) {
    if (one.level !== "info" && one.at > lately) noticed.set(one.node, (noticed.get(one.node) || 0) + 1);
  }
  for (const [node, times] of noticed) found.push({ key: `d${node}`, text: ["Node ", link(`nodes/${to(node)}`, node), ` detected GPU use outside Sluice: ${count(times, "event")} in the last hour`], badge: "warning" });
  const head = store.get("Overview", "", "queue");
  if (head && head.silent) found.push({ key: "s", text: `Stalled tasks of the service: ${head.silent.join(", ")}`, badge: "critical" });
  if (head && head.leftOut) found.push({ key: "l", text: `Some objects are not shown: too many of ${Object.keys(head.leftOut).join(", ")}`, badge: "warning" });
  return found;
}

export function overview(app) {
  const { store } = app;
  const gpus = store.all("Gpu");
  const total = sums(gpus);
  const nodes = store.all("Node");
  const ready = nodes.filter((one) => one.state === "Ready").length;
  const workloads = store.all("Workload");
  const phases = {};
  for (const one of workloads) phases[one.phase] = (phases[one.phase] || 0) + 1;
  const head = store.get("Overview", "", "queue") || {};
  const queues = store.all("ClusterQueue").sort((a, b) => b.pending - a.pending);
  const longest = Math.max(1, ...queues.map((one) => one.pending + one.holding));
  const held = holders(store);
  const warned = alerts(store);
  const onNode = app.session.site === "node";
  const grants = store.all("Work");
  const waits = longestPending(workloads);
  const wasted = unused(store);
  return [
    h("h1", null, "Overview"),
    h(
      "div",
      { class: "tiles" },
      gpus.length ? tile("GPUs", `${total.well} / ${gpus.length}`, "healthy") : null,
      nodes.length && !onNode ? tile("nodes", `${ready} / ${nodes.length}`, "ready") : null,
      gpus.length ? tile("idle GPUs", String(idle(gpus).length), "healthy, without a grant") : null,
      gpus.length ? tile("GPU memory granted", percent(total.given / (total.memory || 1)), `${bytes(total.given)} of ${bytes(total.memory)}${total.known ? `; ${percent(total.used / total.known)} in use` : ""}`) : null,
      gpus.length ? tile("GPU time granted", percent(total.share / gpus.length), total.measured ? `${percent(total.busy / total.measured)} achieved` : undefined) : null,
      onNode ? tile("grants", String(grants.length)) : null,
      onNode ? null : tile("running", String((phases.Running || 0) + (phases.Admitted || 0))),
      onNode ? null : tile("pending", String((phases.Pending || 0) + (phases.QuotaReserved || 0) + (phases.Paused || 0))),
    ),
    h("section", { "aria-labelledby": "o-alerts" }, h("h2", { id: "o-alerts" }, "Needs attention"), warned.length ? h("ul", { class: "alerts" }, warned.slice(0, 50).map((one) => h("li", { key: one.key }, badge(one.badge), " ", one.text))) : h("p", { class: "empty" }, "Nothing.")),
    waits.length
      ? h(
          "section",
          { "aria-labelledby": "o-waits" },
          h("h2", { id: "o-waits" }, "Longest pending"),
          table(
            "Workloads that have been pending for longest",
            ["workload", "ClusterQueue", "pending for", "reason"],
            waits.map((one) => ({
              key: `${one.ns}/${one.name}`,
              cells: [link(`workloads/${to(one.ns, one.name)}`, `${one.ns}/${one.name}`), one.cq ? link(`clusterqueues/${to(one.cq)}`, one.cq) : "none", age(one.created), h("span", { title: one.message || "" }, brief(one))],
            })),
          ),
        )
      : null,
    wasted.length
      ? h(
          "section",
          { "aria-labelledby": "o-unused" },
          h("h2", { id: "o-unused" }, "Grants in little use"),
          table(
            "Grants that use less than half of their memory and of their GPU time",
            ["holder", "node", "memory granted", "memory in use", "share granted", "share achieved"],
            wasted.map(({ one, memory, share }) => ({
              key: `${one.ns}/${one.name}`,
              cells: [holder(one), link(`nodes/${to(one.node)}`, one.node), bytes(memory), bytes(one.used), one.policy === "elastic" ? "weighted" : percent(share), percent(one.achieved)],
            })),
          ),
        )
      : null,
    gpus.length
      ? h(
          "section",
          { "aria-labelledby": "o-gpus" },
          h("h2", { id: "o-gpus" }, "GPU memory by grant"),
          h("p", { class: "hint" }, BARS),
          h(
            "ul",
            { class: "squares" },
            gpus
              .sort((a, b) => (a.node < b.node ? -1 : a.node > b.node ? 1 : a.index - b.index))
              .slice(0, MAX_GPUS)
              .map((gpu) => h("li", { key: gpu.name }, h("a", { href: `#/nodes/${to(gpu.node)}` }, gpuBar(gpu, held.get(gpu.name) || []), h("span", { class: "small" }, `${gpu.node} · ${gpu.index}`)))),
          ),
          gpus.length > MAX_GPUS ? h("p", null, link("nodes", `All ${count(gpus.length, "GPU")}`)) : null,
        )
      : null,
    queues.length
      ? h(
          "section",
          { "aria-labelledby": "o-queues" },
          h("h2", { id: "o-queues" }, "Queue lengths"),
          table(
            "ClusterQueues by pending workloads",
            ["ClusterQueue", "holding quota", "pending", "solid: holding quota, striped: pending"],
            queues.slice(0, MAX_QUEUES).map((one) => ({
              key: one.name,
              cells: [
                link(`clusterqueues/${to(one.name)}`, one.name),
                String(one.holding),
                link(`workloads?cq=${encodeURIComponent(one.name)}&phase=Pending`, String(one.pending)),
                bar([{ ratio: one.holding / longest, tone: "used" }, { ratio: one.pending / longest, tone: "waits" }], `${one.name}: ${one.holding} holding quota, ${one.pending} pending`),
              ],
            })),
          ),
          queues.length > MAX_QUEUES ? link("clusterqueues", `All ${count(queues.length, "ClusterQueue")}`) : null,
        )
      : null,
    head.fragmentation
      ? h(
          "section",
          { "aria-labelledby": "o-frag" },
          h("h2", { id: "o-frag" }, "Fragmentation"),
          table(
            "Fragmentation by size of request",
            ["request", "unusable free memory", "requests that fit"],
            Object.entries(head.fragmentation).map(([name, [ratio, fits]]) => ({ key: name, cells: [name, percent(ratio), String(fits)] })),
          ),
        )
      : null,
    recent(store),
    h("p", { class: "hint" }, head.version ? `sluice-queue ${head.version}, mode ${head.mode}, term ${head.term}` : ""),
  ];
}

function recent(store) {
  const events = store.all("Event").sort((a, b) => (a.name < b.name ? 1 : -1)).slice(0, 8);
  if (!events.length) return null;
  return h("section", { "aria-labelledby": "o-events" }, h("h2", { id: "o-events" }, "Recent events"), h("ul", { class: "events" }, events.map((one) => h("li", { key: one.name }, h("time", null, time(one.at)), " ", badge(one.kind), " ", one.subject ? `${one.subject}: ` : "", one.text))), link("events", "All events"));
}
