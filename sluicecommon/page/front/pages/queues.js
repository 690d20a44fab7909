// ClusterQueues in the tree of their cohorts, and LocalQueues.

import { actionsOf } from "../actions.js";
import { h } from "../dom.js";
import { amount } from "../format.js";
import { badge, bar, facts, link, table, to } from "../parts.js";

function quotaRow([flavor, resource, nominal, used, borrowed, lent, mostBorrowed, mostLent]) {
  const whole = Math.max(nominal, used, 1);
  const own = Math.min(used, nominal);
  const label = `${flavor} ${resource}: ${amount(resource, used)} used of ${amount(resource, nominal)} nominal, ${amount(resource, borrowed)} borrowed, ${amount(resource, lent)} lent`;
  return {
    key: `${flavor}/${resource}`,
    cells: [
      flavor,
      resource,
      amount(resource, nominal),
      amount(resource, used),
      borrowed ? `${amount(resource, borrowed)}${mostBorrowed === null ? "" : ` of ${amount(resource, mostBorrowed)}`}` : "–",
      lent ? `${amount(resource, lent)}${mostLent === null ? "" : ` of ${amount(resource, mostLent)}`}` : "–",
      bar([{ ratio: own / whole, tone: "used" }, { ratio: borrowed / whole, tone: "borrowed" }, { ratio: lent / whole, tone: "lent" }], label, nominal / whole),
    ],
  };
}

const HEADS = ["flavor", "resource", "nominal", "used", "borrowed", "lent", ""];

export function clusterQueues(app) {
  const { store } = app;
  const queues = store.all("ClusterQueue").sort((a, b) => (a.name < b.name ? -1 : 1));
  const cohorts = store.all("Cohort").sort((a, b) => (a.name < b.name ? -1 : 1));
  const names = new Set(cohorts.map((one) => one.name));
  const below = (name) =>
    h(
      "ul",
      { class: "tree" },
      cohorts.filter((one) => (one.parent || "") === name && one.name !== name).map((one) => cohortItem(one)),
      queues.filter((one) => (one.cohort && names.has(one.cohort) ? one.cohort : "") === name).map((one) => queueItem(one)),
    );
  const cohortItem = (one) =>
    h(
      "li",
      { key: `c${one.name}` },
      h(
        "details",
        { open: true },
        h("summary", null, h("strong", null, `Cohort ${one.name}`), one.implicit ? " (implicit: no Cohort object)" : null),
        (one.quota || []).map(([flavor, resource, whole, used]) => h("div", { key: `${flavor}/${resource}`, class: "line" }, h("span", null, `${flavor} ${resource}: ${amount(resource, used)} of ${amount(resource, whole)}`), bar([{ ratio: used / Math.max(1, whole), tone: "used" }], `Cohort ${one.name}, ${flavor} ${resource}: ${amount(resource, used)} used of ${amount(resource, whole)}`))),
        below(one.name),
      ),
    );
  const queueItem = (one) =>
    h(
      "li",
      { key: `q${one.name}` },
      h("div", { class: "line" }, h("span", null, link(`clusterqueues/${to(one.name)}`, one.name), " ", one.stop ? badge(one.stop === "Hold" ? "Held" : "draining") : one.why ? badge("warning") : null), h("span", { class: "small" }, `${one.holding} holding quota, ${one.pending} pending`)),
      (one.quota || []).map((row) => {
        const { cells } = quotaRow(row);
        return h("div", { key: `${row[0]}/${row[1]}`, class: "line" }, h("span", null, `${row[0]} ${row[1]}: ${cells[3]} of ${cells[2]}`, row[4] ? `, ${amount(row[1], row[4])} borrowed` : "", row[5] ? `, ${amount(row[1], row[5])} lent` : ""), cells[6]);
      }),
    );
  return [h("h1", null, "ClusterQueues"), legend(), queues.length || cohorts.length ? below("") : h("p", { class: "empty" }, "No ClusterQueues visible to you.")];
}

function legend() {
  return h("p", { class: "legend" }, ["used", "borrowed", "lent"].map((one) => h("span", { key: one }, h("span", { class: `swatch ${one}` }), one)), h("span", null, "│ nominal quota"));
}

export function clusterQueue(app, name) {
  const doc = app.store.get("ClusterQueue", "", name);
  if (!doc) return app.missing("ClusterQueue", name);
  const locals = app.store.all("LocalQueue").filter((one) => one.cq === name);
  return [
    h("h1", null, `ClusterQueue ${name} `, badge(doc.stop ? (doc.stop === "Hold" ? "Held" : "draining") : doc.why ? "warning" : "active")),
    actionsOf(app, doc),
    doc.why ? h("p", { class: "exact" }, doc.why) : null,
    facts([
      ["cohort", doc.cohort],
      ["queueing strategy", doc.strategy],
      ["holding quota", link(`workloads?cq=${encodeURIComponent(name)}`, String(doc.holding))],
      ["pending", link(`workloads?cq=${encodeURIComponent(name)}&phase=Pending`, String(doc.pending))],
      ["admission checks", (doc.checks || []).join(", ")],
    ]),
    h("h2", null, "Quota"),
    legend(),
    table(`Quota of ${name}`, HEADS, (doc.quota || []).map(quotaRow), "No quota."),
    h("h2", null, "LocalQueues"),
    localTable(locals),
    h("p", null, link(`object/ClusterQueue//${to(name)}`, "YAML"), " · ", link(`whatif?kind=ClusterQueue&name=${encodeURIComponent(name)}`, "What if its quota changed?")),
  ];
}

function localTable(locals) {
  return table(
    "LocalQueues",
    ["LocalQueue", "namespace", "ClusterQueue", "pending", "quota reserved", "admitted", ""],
    locals.map((one) => ({
      key: `${one.ns}/${one.name}`,
      cells: [
        link(`localqueues/${to(one.ns, one.name)}`, one.name),
        one.ns,
        link(`clusterqueues/${to(one.cq)}`, one.cq),
        link(`workloads?ns=${encodeURIComponent(one.ns)}&queue=${encodeURIComponent(one.name)}&phase=Pending`, String(one.pending)),
        String(one.reserving),
        String(one.admitted),
        one.stop ? badge("Held") : "",
      ],
    })),
    "No LocalQueues visible to you.",
  );
}

export function localQueues(app) {
  const text = (app.query.get("q") || "").toLowerCase();
  const found = app.store
    .all("LocalQueue")
    .filter((one) => !text || `${one.ns}/${one.name}`.toLowerCase().includes(text) || (one.cq || "").toLowerCase().includes(text))
    .sort((a, b) => (`${a.ns}/${a.name}` < `${b.ns}/${b.name}` ? -1 : 1));
  return [
    h("h1", null, "LocalQueues"),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, h("label", null, "Text ", h("input", { type: "search", value: app.query.get("q") || "", on: { input: (event) => app.filter({ q: event.target.value }) } })), h("output", null, `${found.length} of ${app.store.size("LocalQueue")}`)),
    localTable(found.slice(0, 500)),
    found.length > 500 ? h("p", { class: "hint" }, "Only the first 500 are shown: use the filter.") : null,
  ];
}

export function localQueue(app, namespace, name) {
  const doc = app.store.get("LocalQueue", namespace, name);
  if (!doc) return app.missing("LocalQueue", `${namespace}/${name}`);
  return [
    h("h1", null, `LocalQueue ${namespace}/${name} `, doc.stop ? badge("Held") : badge("active")),
    actionsOf(app, doc),
    facts([
      ["ClusterQueue", link(`clusterqueues/${to(doc.cq)}`, doc.cq)],
      ["pending", String(doc.pending)],
      ["quota reserved", String(doc.reserving)],
      ["admitted", String(doc.admitted)],
    ]),
    h("p", null, link(`workloads?ns=${encodeURIComponent(namespace)}&queue=${encodeURIComponent(name)}`, "Workloads"), " · ", link(`object/LocalQueue/${to(namespace, name)}`, "YAML")),
  ];
}
