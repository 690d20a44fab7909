// Cache of the service's documents by kind, kept current by one event stream that resumes after a reconnect.

import { call } from "./session.js";
import { Stream } from "./stream.js";

export class Store {
  constructor(changed) {
    this.kinds = new Map();
    this.changed = changed;
    this.state = "connecting";
    this.why = "";
    this.last = "";
    this.synced = false;
    this.received = 0;
    this.retry = 0;
  }

  all(kind) {
    const found = this.kinds.get(kind);
    return found ? Array.from(found.values()) : [];
  }

  get(kind, namespace, name) {
    const found = this.kinds.get(kind);
    return found ? found.get(`${namespace}/${name}`) : undefined;
  }

  size(kind) {
    const found = this.kinds.get(kind);
    return found ? found.size : 0;
  }

  open() {
    this.close();
    const source = new Stream("stream", this.last);
    this.source = source;
    source.addEventListener("open", () => this.say("live"));
    source.addEventListener("reset", () => {
      this.kinds.clear();
      this.synced = false;
      this.changed();
    });
    source.addEventListener("delta", (event) => this.take(event));
    source.addEventListener("synced", (event) => {
      this.last = event.lastEventId || this.last;
      this.synced = true;
      this.changed();
    });
    source.addEventListener("cut", (event) => this.say("live", JSON.parse(event.data)));
    source.addEventListener("bye", () => {
      this.close();
      this.say("ended", "your session has ended: log in again");
    });
    source.addEventListener("error", () => {
      if (source.readyState === Stream.CLOSED) this.again();
      else this.say("away", "the service does not answer; reconnecting");
    });
  }

  async again() {
    // A stream is closed if it is refused; api/session gives the reason.
    this.close();
    let wait = Math.min(5000, 300 * 2 ** this.retry);
    this.retry += 1;
    try {
      const answer = await call("session");
      const session = await answer.json();
      if (answer.ok && session.viewer === null) return this.say("ended", session.why);
      if (!answer.ok) this.say("away", session.error || `HTTP ${answer.status}`);
      else if (this.retry > 3) this.say("away", "no leading replica has answered yet");
    } catch {
      this.say("away", "the service does not answer; reconnecting");
      wait = Math.max(wait, 1000);
    }
    this.timer = setTimeout(() => this.open(), wait);
  }

  close() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }

  say(state, why = "") {
    if (state === "live") this.retry = 0;
    this.state = state;
    this.why = why;
    this.changed();
  }

  take(event) {
    this.received += event.data.length;
    for (const [kind, namespace, name, fields, isNew] of JSON.parse(event.data)) {
      let kept = this.kinds.get(kind);
      if (!kept) this.kinds.set(kind, (kept = new Map()));
      const id = `${namespace}/${name}`;
      if (fields === null) {
        kept.delete(id);
        continue;
      }
      const before = isNew ? undefined : kept.get(id);
      const now = before ? { ...before, ...fields } : { kind_: kind, ns: namespace, name, ...fields };
      for (const one in fields) if (fields[one] === null) delete now[one];
      kept.set(id, now);
    }
    this.last = event.lastEventId || this.last;
    this.changed();
  }
}

export async function ask(path, given = {}) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
  return answered(await call(`${path}${query ? `?${query}` : ""}`));
}

export async function act(path, given) {
  return answered(
    await call(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Sluice-Page": "1" },
      body: JSON.stringify(given),
    }),
  );
}

async function answered(answer) {
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Error(`HTTP ${answer.status}`);
  }
  if (!answer.ok) throw new Error(body.error || `HTTP ${answer.status}`);
  return body;
}
