// Overview: use of GPUs and queues, and alerts.

import { h } from "../dom.js";
import { age, bytes, count, percent, ranges, time } from "../format.js";
import { badge, bar, brief, link, table, tile, to, tones } from "../parts.js";

const MAX_GPUS = 400;
const MAX_QUEUES = 12;

export const BARS = "One bar per GPU: a colour for each holder of its memory; the mark is the memory in use.";

export function gpuBar(gpu, work) {
  const total = gpu.memory || 1;
  const colours = tones(work.map((one) => one.who));
  const parts = work.map((one) => ({ ratio: one.memory / total, tone: colours.get(one.who) }));
  if (gpu.outside) parts.push({ ratio: gpu.outside / total, tone: "outside" });
  const held = work.map((one) => `${one.who} ${bytes(one.memory)}`).concat(gpu.outside ? [`other use ${bytes(gpu.outside)}`] : []).join(", ") || "no grants";
  const used = gpu.used === undefined ? "" : `, ${bytes(gpu.used)} in use`;
  const label = `GPU ${gpu.index} of ${gpu.node}: ${bytes(gpu.given || 0)} of ${bytes(gpu.memory)} granted (${held})${used}, ${gpu.health}`;
  return bar(parts, label, gpu.used === undefined ? undefined : gpu.used / total);
}

// Who holds a grant: a workload of the queue, else a pod, else the grant's own name.
export function holder(work) {
  if (work.workload) return work.workload;
  return work.pod ? `${work.ns}/${work.pod}` : work.name;
}

// The same as a cell, with the pod's name where the workload has several.
export function holderCell(work) {
  if (!work.workload) return work.pod ? [holder(work), h("span", { class: "small" }, " pod of no queue")] : holder(work);
  return [link(`workloads/${to(...work.workload.split("/"))}`, work.workload), work.pod ? h("span", { class: "small" }, ` pod ${work.pod}`) : null];
}

// What a grant holds on all its GPUs; measured use is reported for all of them together.
export function whole(work) {
  const gpus = work.gpus || [];
  const size = gpus.length || 1;
  return {
    size,
    memory: gpus.reduce((sum, [, memory]) => sum + memory, 0),
    share: gpus.reduce((sum, [, , ratio]) => sum + (ratio || 0), 0) / size,
    achieved: work.achieved === undefined ? undefined : work.achieved / size,
  };
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
  const total = { memory: 0, given: 0, used: 0, known: 0, share: 0, busy: 0, measured: 0 };
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
  }
  return total;
}

// The card of a GPU, which may be one of the card's MIG instances.
const cardOf = (gpu) => gpu.parent || gpu.name;

// GPUs that take new grants and have none, and nothing else in use on them. The driver's own memory is not use.
function idle(gpus, open) {
  return gpus.filter((one) => open.has(one.node) && one.health === "healthy" && !one.grants && !one.outside && !(one.used > 1 << 30));
}

// Cards of which all is idle: a card in MIG mode is several GPUs here, and one of the GPUs that are counted.
function idleCards(found, gpus) {
  const left = new Map();
  for (const one of gpus) left.set(cardOf(one), (left.get(cardOf(one)) || 0) + 1);
  return new Set(found.map(cardOf).filter((card) => left.set(card, left.get(card) - 1).get(card) === 0));
}

// Idle GPUs by node: gpu-1 (all 8), gpu-2: 0–3, 5.
function idleNodes(found, gpus) {
  const nodes = new Map();
  for (const one of found) nodes.set(one.node, [...(nodes.get(one.node) || []), one]);
  const all = new Map();
  for (const one of gpus) all.set(one.node, (all.get(one.node) || 0) + 1);
  return [...nodes]
    .sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }))
    .map(([node, mine]) => {
      if (mine.length === all.get(node)) return [node, ` (all ${new Set(mine.map(cardOf)).size})`];
      const cards = mine.filter((one) => !one.profile).map((one) => one.index);
      const cut = [...new Set(mine.filter((one) => one.profile).map((one) => one.index))];
      const instances = cut.map((index) => `${index} MIG ${mine.filter((one) => one.profile && one.index === index).map((one) => one.profile).join(" + ")}`);
      return [node, `: ${[ranges(cards), ...instances].filter(Boolean).join(", ")}`];
    });
}

const WAITING = new Set(["Pending", "QuotaReserved", "Paused"]);
const MAX_ROWS = 4;
const UNUSED = 0.5;
const SETTLED_S = 120;

// Workloads without quota or places, and pods for which kube-scheduler found no node.
function longestPending(store) {
  return store
    .all("Workload")
    .filter((one) => WAITING.has(one.phase))
    .concat(store.all("Pod").map((one) => ({ ...one, isPod: true })))
    .sort((a, b) => (a.created || 0) - (b.created || 0));
}

// Grants that use less than half of their guaranteed time and of their memory, the largest unused memory first.
function unused(store) {
  const now = Date.now() / 1000;
  const found = [];
  for (const one of store.all("Work")) {
    if (one.state !== "running" || one.used === undefined || (one.since && now - one.since < SETTLED_S)) continue;
    const { memory, share, achieved } = whole(one);
    if (memory && one.used < memory * UNUSED && (achieved || 0) < (share || 1) * UNUSED) found.push({ one, memory, share, achieved });
  }
  return found.sort((a, b) => b.memory - b.one.used - (a.memory - a.one.used));
}

export function alerts(store) {
  const found = [];
  for (const node of store.all("Node")) {
    if (node.state && node.state !== "Ready") found.push({ key: `n${node.name}`, text: ["Node ", link(`nodes/${to(node.name)}`, node.name), " does not report"], badge: node.state });
    else if (node.cordoned) found.push({ key: `c${node.name}`, text: ["Node ", link(`nodes/${to(node.name)}`, node.name), " takes no new work"], badge: "cordoned" });
    if (node.nvml) found.push({ key: `e${node.name}`, text: `The GPUs of ${node.name} cannot be read: ${node.nvml}`, badge: "critical" });
  }
  const cards = new Set();
  for (const gpu of store.all("Gpu")) {
    if (!gpu.health || gpu.health === "healthy" || cards.has(cardOf(gpu))) continue;
    cards.add(cardOf(gpu));
    found.push({ key: `g${gpu.name}`, text: ["GPU ", String(gpu.index), " of ", link(`nodes/${to(gpu.node)}`, gpu.node), gpu.why ? `: ${gpu.why}` : ` is ${gpu.health}`], badge: gpu.health });
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
  return found.sort((a, b) => (a.badge === "cordoned") - (b.badge === "cordoned"));
}

export function overview(app) {
  const { store } = app;
  const gpus = store.all("Gpu");
  const total = sums(gpus);
  const cards = new Set(gpus.map(cardOf));
  const well = new Set(gpus.filter((one) => one.health === "healthy").map(cardOf));
  const nodes = store.all("Node");
  const open = new Set(nodes.filter((one) => one.state === "Ready" && !one.cordoned).map((one) => one.name));
  const free = idle(gpus, open);
  const whollyFree = idleCards(free, gpus);
  const instances = free.filter((one) => !whollyFree.has(cardOf(one))).length;
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
  const waits = longestPending(store);
  const podsWaiting = store.size("Pod");
  const wasted = unused(store);
  return [
    h("h1", null, "Overview"),
    h(
      "div",
      { class: "tiles" },
      gpus.length ? tile("GPUs", `${well.size} / ${cards.size}`, "healthy") : null,
      nodes.length && !onNode ? tile("nodes", `${ready} / ${nodes.length}`, "ready") : null,
      gpus.length ? tile("idle GPUs", String(whollyFree.size), `healthy, no grant${instances ? `; and ${count(instances, "MIG instance")}` : ""}`) : null,
      gpus.length ? tile("memory granted", percent(total.given / (total.memory || 1)), `${bytes(total.given)} of ${bytes(total.memory)}${total.known ? `; ${percent(total.used / total.known)} in use` : ""}`) : null,
      gpus.length ? tile("time granted", percent(total.share / gpus.length), total.measured ? `${percent(total.busy / total.measured)} achieved` : undefined) : null,
      onNode ? tile("grants", String(grants.length)) : null,
      onNode ? null : tile("running", String((phases.Running || 0) + (phases.Admitted || 0)), "workloads, or admitted"),
      onNode ? null : tile("pending", String((phases.Pending || 0) + (phases.QuotaReserved || 0) + (phases.Paused || 0)), podsWaiting ? `and ${count(podsWaiting, "pod")} without a node` : "workloads"),
    ),
    h("section", { "aria-labelledby": "o-alerts" }, h("h2", { id: "o-alerts" }, "Needs attention"), warned.length ? h("ul", { class: "alerts" }, warned.slice(0, 50).map((one) => h("li", { key: one.key }, badge(one.badge), " ", one.text))) : h("p", { class: "empty" }, "Nothing.")),
    free.length && !onNode ? idleSection(free, gpus) : null,
    waits.length
      ? h(
          "section",
          { "aria-labelledby": "o-waits" },
          h("h2", { id: "o-waits" }, "Longest pending", waits.length > MAX_ROWS ? h("span", { class: "small" }, `${MAX_ROWS} of ${waits.length}`) : null),
          table(
            "Workloads and pods that have been pending for longest",
            ["workload or pod", "ClusterQueue", "pending for", "reason"],
            waits.slice(0, MAX_ROWS).map((one) => ({
              key: `${one.isPod}${one.ns}/${one.name}`,
              cells: [one.isPod ? [`${one.ns}/${one.name}`, h("span", { class: "small" }, " pod")] : link(`workloads/${to(one.ns, one.name)}`, `${one.ns}/${one.name}`), one.cq ? link(`clusterqueues/${to(one.cq)}`, one.cq) : "none", age(one.created), h("span", { class: "text lines2", title: one.message || "" }, brief(one))],
            })),
          ),
        )
      : null,
    wasted.length
      ? h(
          "section",
          { "aria-labelledby": "o-unused" },
          h("h2", { id: "o-unused" }, "Grants in little use", wasted.length > MAX_ROWS ? h("span", { class: "small" }, `${MAX_ROWS} of ${wasted.length}`) : null),
          table(
            "Grants that use less than half of their memory and of their GPU time",
            ["holder", "node", "memory granted", "memory in use", "time granted per GPU", "time achieved per GPU"],
            wasted.slice(0, MAX_ROWS).map(({ one, memory, share, achieved }) => ({
              key: `${one.ns}/${one.name}`,
              cells: [holderCell(one), link(`nodes/${to(one.node)}`, one.node), bytes(memory), bytes(one.used), one.policy === "elastic" ? "weighted" : percent(share), percent(achieved)],
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

const MAX_IDLE_NODES = 12;

function idleSection(free, gpus) {
  const found = idleNodes(free, gpus);
  const shown = found.slice(0, MAX_IDLE_NODES);
  return h(
    "section",
    { "aria-labelledby": "o-idle" },
    h("h2", { id: "o-idle" }, "Idle GPUs"),
    h(
      "p",
      { class: "idle" },
      shown.map(([node, which]) => h("span", { key: node }, link(`nodes/${to(node)}`, node), which)),
      found.length > shown.length ? h("span", { key: "" }, `and ${count(found.length - shown.length, "more node")}`) : null,
    ),
  );
}

function recent(store) {
  const events = store.all("Event").sort((a, b) => (a.name < b.name ? 1 : -1)).slice(0, 8);
  if (!events.length) return null;
  return h("section", { "aria-labelledby": "o-events" }, h("h2", { id: "o-events" }, "Recent events"), h("ul", { class: "events" }, events.map((one) => h("li", { key: one.name }, h("time", null, time(one.at)), " ", badge(one.kind), " ", one.subject ? `${one.subject}: ` : "", one.text))), link("events", "All events"));
}
