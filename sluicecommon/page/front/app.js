// The page: the session, the current view, and redrawing when the store changes.

import { dialog } from "./actions.js";
import { h, patch } from "./dom.js";
import { count } from "./format.js";
import { borrow, call, keep } from "./session.js";
import { act, Store } from "./store.js";
import { grant, grants } from "./pages/grants.js";
import { node, nodes } from "./pages/nodes.js";
import { events, flavors, object, topology, whatif } from "./pages/others.js";
import { overview } from "./pages/overview.js";
import { clusterQueue, clusterQueues, localQueue, localQueues } from "./pages/queues.js";
import { workload, workloads } from "./pages/workloads.js";

const PAGES = {
  queue: [
    ["", "Overview", overview],
    ["workloads", "Workloads", workloads, 2, workload],
    ["clusterqueues", "ClusterQueues", clusterQueues, 1, clusterQueue],
    ["localqueues", "LocalQueues", localQueues, 2, localQueue],
    ["nodes", "Nodes", nodes, 1, node],
    ["flavors", "Flavors", flavors],
    ["topology", "Topology", topology],
    ["events", "Events", events],
    ["whatif", "What if", whatif],
  ],
  node: [
    ["", "Overview", overview],
    ["grants", "Grants", grants, 2, grant],
    ["nodes", "GPUs", nodes, 1, node],
    ["events", "Detections", events],
  ],
};
const MIN_REDRAW_MS = 100;

class App {
  constructor(root) {
    this.root = root;
    this.session = null;
    this.store = new Store(() => this.redraw(true));
    this.version = 0;
    this.query = new URLSearchParams();
    this.path = [];
    this.dialog = null;
    this.message = "";
    this.drawn = 0;
    this.theme = localStorage.getItem("theme") || "";
    this.narrowQuery = window.matchMedia("(max-width: 760px)");
    this.narrowQuery.addEventListener("change", () => this.redraw());
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("visibilitychange", () => this.redraw());
    setInterval(() => this.redraw(), 5000); // Ages change with time.
    this.applyTheme();
  }

  get narrow() {
    return this.narrowQuery.matches;
  }

  applyTheme() {
    if (this.theme) document.documentElement.setAttribute("data-theme", this.theme);
    else document.documentElement.removeAttribute("data-theme");
  }

  // Several changes are drawn at once, and a hidden page is not drawn.
  redraw(changed = false) {
    if (changed) this.version += 1;
    if (this.waiting || document.hidden) return;
    this.waiting = true;
    const left = changed ? Math.max(0, MIN_REDRAW_MS - (performance.now() - this.drawn)) : 0;
    setTimeout(() => requestAnimationFrame(() => this.draw()), left);
  }

  async begin() {
    const ticket = /^#ticket=([\w-]+)$/.exec(location.hash);
    if (ticket) {
      history.replaceState(null, "", "#/"); // A used ticket must not stay in the browser's history.
      await this.enter(ticket[1]);
    } else await borrow();
    await this.loadSession();
  }

  async enter(secret) {
    try {
      keep((await act("enter", { secret })).session);
      this.message = "";
      return true;
    } catch (error) {
      this.message = error.message;
      return false;
    }
  }

  async loadSession() {
    try {
      this.session = await (await call("session")).json();
    } catch {
      this.message = "the service does not answer";
      setTimeout(() => this.loadSession(), 2000);
      return this.redraw();
    }
    if (this.session.error) {
      this.message = this.session.error;
      this.session = null;
      setTimeout(() => this.loadSession(), 2000);
      return this.redraw();
    }
    if (this.session.viewer !== null) this.store.open();
    else keep("");
    this.route();
    return undefined;
  }

  async leave() {
    this.store.close();
    await act("leave", {}).catch(() => {});
    keep("");
    location.reload();
  }

  route() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    this.path = path.split("/").map(decodeURIComponent);
    this.query = new URLSearchParams(query || "");
    const before = this.page;
    this.page = path;
    this.redraw();
    if (before !== undefined && before !== path) {
      requestAnimationFrame(() => {
        const main = document.getElementById("main");
        if (main) main.focus({ preventScroll: true });
      });
      window.scrollTo(0, 0);
    }
  }

  // The filter is part of the URL, so that it can be bookmarked and shared.
  filter(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value) this.query.set(name, value);
      else this.query.delete(name);
    }
    const text = this.query.toString();
    history.replaceState(null, "", `#/${this.page}${text ? `?${text}` : ""}`);
    this.redraw();
  }

  missing(kind, name) {
    return [h("h1", null, `${kind} ${name}`), h("p", { class: "empty" }, this.store.synced ? "Not found, or not visible to you." : "Loading…")];
  }

  draw() {
    this.waiting = false;
    this.drawn = performance.now();
    patch(this.root, this.view());
    if (!this.painted && this.store.synced) this.painted = performance.now(); // Read by the page's tests.
  }

  view() {
    if (!this.session) return h("main", { id: "main", tabindex: "-1" }, h("h1", null, "Sluice"), h("p", { role: "status" }, this.message || "…"));
    if (this.session.viewer === null || this.store.state === "ended") return this.login();
    const pages = PAGES[this.session.site];
    const [first, ...rest] = this.path;
    const here = pages.find(([path]) => path === first);
    let content;
    let title = "Sluice";
    if (first === "object" && rest.length === 3) content = object(this, ...rest);
    else if (!here) content = [h("h1", null, "No such page"), h("p", null, h("a", { href: "#/" }, "Overview"))];
    else if (rest.length) content = here[3] === rest.length ? here[4](this, ...rest) : [h("h1", null, "No such page")];
    else content = here[2](this);
    if (here) title = `${rest.length ? rest.join("/") : here[1]} · Sluice`;
    if (document.title !== title) document.title = title;
    return [
      h("button", { class: "skip", type: "button", on: { click: () => document.getElementById("main").focus() } }, "Skip to content"),
      h(
        "header",
        null,
        h("strong", { class: "name" }, "Sluice"),
        h("nav", { "aria-label": "Pages" }, pages.map(([path, name]) => h("a", { key: path, href: `#/${path}`, "aria-current": path === first ? "page" : undefined }, name))),
        h("span", { class: `live ${this.store.state}`, role: "status" }, this.store.state === "live" ? (this.store.synced ? `live${this.store.why ? `: ${this.store.why}` : ""}` : "loading") : this.store.why || this.store.state),
        h("button", { type: "button", on: { click: () => this.nextTheme() } }, `Theme: ${this.theme || "system"}`),
        h("span", { class: "small viewer", title: this.session.viewer }, this.session.viewer.replace(/^system:serviceaccount:([^:]+):/, "$1/")),
        h("button", { type: "button", on: { click: () => this.leave() } }, "Log out"),
      ),
      h("main", { id: "main", tabindex: "-1", key: `main-${first}-${rest.join("/")}` }, content),
      dialog(this),
    ];
  }

  nextTheme() {
    this.theme = { "": "dark", dark: "light", light: "" }[this.theme];
    localStorage.setItem("theme", this.theme);
    this.applyTheme();
    this.redraw();
  }

  login() {
    const submit = async (event) => {
      event.preventDefault();
      const secret = new FormData(event.target).get("secret").trim();
      if (await this.enter(secret)) location.reload();
      this.redraw();
    };
    const command = this.session.site === "node" ? "sluice web" : "sluice-queue web";
    return h(
      "main",
      { id: "main", class: "login", tabindex: "-1" },
      h("h1", null, "Sluice"),
      this.session.tokens
        ? h("form", { on: { submit } }, h("p", null, "The rights of your Kubernetes token decide what you can see and do here. Get a token with ", h("code", null, "kubectl create token NAME"), " or from your identity provider."), h("label", null, "Token", h("input", { name: "secret", type: "password", autocomplete: "off", required: true })), h("button", { type: "submit", class: "main" }, "Log in"))
        : h("p", null, "Run ", h("code", null, command), " on this machine: it prints a URL that opens this page once, with your rights."),
      h("p", { class: "error", role: "alert" }, this.message || this.store.why || ""),
    );
  }
}

const app = new App(document.getElementById("app"));
globalThis.sluice = { app, count };
app.begin();
