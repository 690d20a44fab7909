// Workloads: a list of any length with its filter in the URL, and one workload with the reason why it is pending.

import { actionsOf } from "../actions.js";
import { h } from "../dom.js";
import { age, bytes, duration, percent, ranges, requested, time } from "../format.js";
import { badge, brief, facts, link, List, table, to } from "../parts.js";
import { ask } from "../store.js";
import { whole } from "./overview.js";

const kept = { list: null, version: -1, key: "", found: [] };
const PHASES = ["Pending", "QuotaReserved", "Admitted", "Running", "Paused", "Preempted", "Held", "Finished"];

// A long text in a row of the list, whose tooltip has all of it.
function wrapped(text, shown = text) {
  return h("span", { class: "text", title: text }, shown);
}

function rank(one) {
  return PHASES.indexOf(one.phase) + 1 || 99;
}

function select(app) {
  const { store, query } = app;
  const key = `${app.version}?${query}`;
  if (kept.key === key) return kept.found;
  const text = (query.get("q") || "").toLowerCase();
  const [phase, namespace, queue, cq] = ["phase", "ns", "queue", "cq"].map((one) => query.get(one) || "");
  const found = store.all("Workload").filter(
    (one) =>
      (!phase || one.phase === phase) &&
      (!namespace || one.ns === namespace) &&
      (!queue || one.queue === queue) &&
      (!cq || one.cq === cq) &&
      (!text || one.name.toLowerCase().includes(text) || one.ns.toLowerCase().includes(text) || (one.message || "").toLowerCase().includes(text) || (one.user || "").toLowerCase().includes(text)),
  );
  found.sort((a, b) => rank(a) - rank(b) || (a.position || 0) - (b.position || 0) || (b.created || 0) - (a.created || 0) || (a.name < b.name ? -1 : 1));
  kept.key = key;
  kept.found = found;
  return found;
}

export function workloads(app) {
  const { store, query } = app;
  const found = select(app);
  kept.list ||= new List("Workloads", ["workload", "phase", "position", "ClusterQueue", "requests", "reason", "estimate", "age"], () => (app.narrow ? 150 : 58), () => app.redraw());
  const set = (name) => ({ change: (event) => app.filter({ [name]: event.target.value }) });
  const options = (values) => ["", ...Array.from(values).sort()].map((one) => h("option", { key: one, value: one }, one || "any"));
  const all = store.all("Workload");
  return [
    h("h1", null, "Workloads"),
    h(
      "form",
      { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      h("label", null, "Text ", h("input", { type: "search", value: query.get("q") || "", on: { input: (event) => app.filter({ q: event.target.value }) } })),
      h("label", null, "Phase ", h("select", { value: query.get("phase") || "", on: set("phase") }, options(PHASES))),
      h("label", null, "Namespace ", h("select", { value: query.get("ns") || "", on: set("ns") }, options(new Set(all.map((one) => one.ns))))),
      h("label", null, "ClusterQueue ", h("select", { value: query.get("cq") || "", on: set("cq") }, options(new Set(all.map((one) => one.cq).filter(Boolean))))),
      h("output", null, `${found.length.toLocaleString()} of ${all.length.toLocaleString()}`),
    ),
    kept.list.view(
      found,
      (one) => ({
        key: `${one.ns}/${one.name}`,
        cells: [
          [link(`workloads/${to(one.ns, one.name)}`, one.name), h("span", { class: "small" }, one.ns)],
          badge(one.phase),
          one.position ? `${one.position} of ${one.waiting}` : "",
          one.cq || "",
          wrapped(one.asks || requested(one.requests), one.asks || requested(one.requests, true)),
          wrapped(one.message || one.reason || "", brief(one)),
          one.estimate === undefined ? "" : `about ${duration(one.estimate)}`,
          age(one.created),
        ],
      }),
      "No workloads visible to you.",
    ),
  ];
}

const answers = new Map();

function explained(app, doc) {
  const key = `${doc.ns}/${doc.name}`;
  const known = answers.get(key);
  const stale = !known || known.doc !== doc || Date.now() - known.at > 10000;
  if (stale && (!known || Date.now() - known.at > 700)) {
    const now = { doc, at: Date.now(), found: known ? known.found : null };
    answers.set(key, now);
    if (answers.size > 32) answers.delete(answers.keys().next().value);
    ask("explain", { namespace: doc.ns, name: doc.name })
      .then((found) => {
        now.found = found;
        now.error = "";
        app.redraw();
      })
      .catch((error) => {
        now.error = error.message;
        app.redraw();
      });
    return now;
  }
  return known;
}

// The GPUs of a grant by their indices on the node, or by UUID where these are not visible.
function where(store, one) {
  const known = (one.gpus || []).map(([uuid, , , profile]) => [store.get("Gpu", "", uuid), uuid, profile]);
  const cards = known.filter(([gpu, , profile]) => gpu && !profile && !gpu.profile).map(([gpu]) => gpu.index);
  const others = known.filter(([gpu, , profile]) => !gpu || profile || gpu.profile);
  return [ranges(cards), cards.length && others.length ? ", " : "", others.map(([gpu, uuid, profile], at) => [at ? ", " : "", gpu ? `${gpu.index} MIG ${profile || gpu.profile}` : h("code", null, uuid)])];
}

export function workload(app, namespace, name) {
  const { store } = app;
  const doc = store.get("Workload", namespace, name);
  if (!doc) return app.missing("Workload", `${namespace}/${name}`);
  const { found, error } = explained(app, doc);
  const why = found && found.explanation;
  const work = store.all("Work").filter((one) => one.workload === `${namespace}/${name}`);
  const evicted = found ? found.events.filter((one) => /Evict|Preempt|Lost|Refused/.test(one.kind)) : [];
  return [
    h("h1", null, `${namespace}/${name} `, badge(doc.phase)),
    actionsOf(app, doc),
    facts([
      ["queue", link(`localqueues?q=${encodeURIComponent(doc.queue)}`, `${namespace}/${doc.queue}`)],
      ["ClusterQueue", doc.cq ? link(`clusterqueues/${to(doc.cq)}`, doc.cq) : "none"],
      ["priority", doc.priority ? `${doc.priority}${doc.class ? ` (${doc.class})` : ""}` : doc.class],
      ["GPU request", doc.asks],
      ["requests", Object.entries(doc.requests || {}).map(([name, value]) => h("span", { key: name, class: "each" }, requested({ [name]: value })))],
      ["pods", String(doc.pods)],
      ["user", doc.user],
      ["submitted as", doc.kind],
      ["submitted", time(doc.created)],
      ["attempts", doc.attempt],
      ["node", doc.node && store.get("Node", "", doc.node) ? link(`nodes/${to(doc.node)}`, doc.node) : doc.node],
    ]),
    h(
      "section",
      { class: "card", "aria-labelledby": "w-why" },
      h("h2", { id: "w-why" }, doc.phase === "Pending" || doc.phase === "Paused" ? "Why it is pending" : "Status"),
      error ? h("p", { class: "error" }, error) : null,
      found
        ? [
            found.reason || found.message ? h("p", { key: "m", class: "exact" }, h("strong", null, found.reason), found.message ? `: ${found.message}` : "") : null,
            facts([
              ["position", found.position ? `${found.position} of ${found.waiting}` : undefined],
              ["estimate", typeof found.estimateSeconds === "number" ? `about ${duration(found.estimateSeconds)}, from recent admissions` : why && !why.waitingHelps ? "never, unless something is changed" : undefined],
            ]),
            why && why.ways.length ? [h("h3", { key: "h" }, "It would start if"), h("ul", { key: "u" }, why.ways.map((one) => h("li", { key: one }, one)))] : null,
            why && why.flavors.length
              ? table("Why each flavor does not fit", ["pod set", "flavor", "reason"], why.flavors.map((one) => ({ key: `${one.podSet}/${one.flavor}`, cells: [one.podSet, one.flavor, one.text] })))
              : null,
            why && why.turn ? h("p", { key: "t" }, `LocalQueue ${why.turn.localQueue} has used ${why.turn.usage} and is served ${why.turn.servedBefore.length ? `after ${why.turn.servedBefore.map((one) => one.name).join(", ")}` : "first"}.`) : null,
          ]
        : h("p", { class: "hint" }, "Loading…"),
    ),
    h(
      "section",
      { "aria-labelledby": "w-where" },
      h("h2", { id: "w-where" }, "Placement"),
      table(
        "Pods and their GPUs",
        ["pod", "node", "GPU index", "memory granted", "memory in use", "time granted per GPU", "time achieved per GPU", "state"],
        work.map((one) => {
          const { memory, share, achieved } = whole(one);
          return {
            key: one.name,
            cells: [one.pod || "–", store.get("Node", "", one.node) ? link(`nodes/${to(one.node)}`, one.node) : one.node, where(store, one), bytes(memory), bytes(one.used), one.policy === "elastic" ? "weighted" : percent(share), percent(achieved), badge(one.state)],
          };
        }),
        doc.phase === "Running" || doc.phase === "Admitted" ? "This controller did not place it." : "Not placed.",
      ),
    ),
    found && found.checks.length ? h("section", { "aria-labelledby": "w-checks" }, h("h2", { id: "w-checks" }, "Admission checks"), table("Admission checks", ["check", "state", "message"], found.checks.map((one) => ({ key: one.name, cells: [one.name, badge(one.state), one.message] })))) : null,
    found && found.conditions.length ? h("section", { "aria-labelledby": "w-cond" }, h("h2", { id: "w-cond" }, "Conditions"), table("Conditions", ["condition", "status", "reason", "message", "since"], found.conditions.map((one) => ({ key: one.type, cells: [one.type, one.status ? "true" : "false", one.reason, one.message, time(one.at)] })))) : null,
    found
      ? h(
          "section",
          { "aria-labelledby": "w-hist" },
          h("h2", { id: "w-hist" }, "History"),
          evicted.length ? h("p", null, `Evicted or refused ${evicted.length} times in the recorded events.`) : null,
          table("Audit trail", ["time", "event", "details"], found.events.map((one, at) => ({ key: at, cells: [time(one.at), badge(one.kind), one.text] })), "No recorded events: in mode kubernetes, kubectl describe shows its events."),
        )
      : null,
    h("p", null, link(`object/Workload/${to(namespace, name)}`, "YAML")),
  ];
}
