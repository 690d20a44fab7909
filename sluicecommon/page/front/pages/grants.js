// The grants of a node, from its own `sluice serve`.

import { actionsOf } from "../actions.js";
import { h } from "../dom.js";
import { age, bytes, duration, percent } from "../format.js";
import { badge, facts, link, table, to } from "../parts.js";
import { lines } from "./nodes.js";

export function grants(app) {
  const found = app.store.all("Work").sort((a, b) => (a.since || 0) - (b.since || 0));
  return [
    h("h1", null, "Grants"),
    table(
      "Grants",
      ["grant", "user", "state", "memory granted", "in use", "share granted", "achieved", "processes", "since"],
      found.map((one) => ({
        key: one.name,
        cells: [link(`grants/${to(one.ns, one.name)}`, one.label || one.name), one.user || one.ns, badge(one.state), bytes((one.gpus || []).reduce((sum, [, memory]) => sum + memory, 0)), bytes(one.used), one.policy === "elastic" ? "weighted" : percent(one.gpus && one.gpus.length ? one.gpus[0][2] : undefined), percent(one.achieved), String(one.processes || 0), age(one.since)],
      })),
      "No grants visible to you.",
    ),
  ];
}

export function grant(app, user, name) {
  const doc = app.store.get("Work", user, name);
  if (!doc) return app.missing("Grant", name);
  return [
    h("h1", null, `Grant ${doc.label || name} `, badge(doc.state)),
    actionsOf(app, doc, "Grant"),
    facts([
      ["id", h("code", null, name)],
      ["user", doc.user || user],
      ["workload", doc.queued],
      ["command", doc.command ? h("code", null, doc.command) : undefined],
      ["policy", doc.policy],
      ["gang", doc.gang ? "a rank of a job on several nodes: no windows" : undefined],
      ["trusted group", doc.group],
      ["processes", String(doc.processes || 0)],
      ["since", `${age(doc.since)} ago`],
      ["launches", doc.launches === undefined ? undefined : doc.launches.toLocaleString()],
      ["GPU time used", duration(doc.busy)],
      ["time throttled", duration(doc.waited)],
      ["allocations refused", doc.denied],
      ["tampering detected", doc.tampers],
    ]),
    h("h2", null, "GPUs"),
    table(
      "GPUs of the grant",
      ["GPU", "memory granted", "share granted"],
      (doc.gpus || []).map(([uuid, memory, share]) => {
        const gpu = app.store.get("Gpu", "", uuid);
        return { key: uuid, cells: [gpu ? link(`nodes/${to(gpu.node)}`, `GPU ${gpu.index}`) : h("code", null, uuid), bytes(memory), percent(share)] };
      }),
    ),
    h("h2", null, "The last hour"),
    lines(app, name),
  ];
}
