// Server-sent events with the interface of EventSource, which cannot send the header of the session.

import { call } from "./session.js";

const RETRY_MS = 1000;

export class Stream extends EventTarget {
  static CLOSED = 2;

  constructor(path, after) {
    super();
    this.path = path;
    this.after = after;
    this.readyState = 0;
    this.ended = new AbortController();
    this.follow();
  }

  close() {
    this.readyState = Stream.CLOSED;
    this.ended.abort();
  }

  async follow() {
    while (this.readyState !== Stream.CLOSED) {
      try {
        await this.read();
      } catch {
        // The connection ended, or close() ended it.
      }
      if (this.readyState === Stream.CLOSED) return;
      this.dispatchEvent(new Event("error"));
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  async read() {
    const headers = this.after ? { "Last-Event-ID": this.after } : {};
    const answer = await call(this.path, { headers, signal: this.ended.signal, cache: "no-store" });
    if (!answer.ok) {
      this.close();
      this.dispatchEvent(new Event("error"));
      return;
    }
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let line = []; // Parts of a line that has not ended: one event may have megabytes.
    let event = {};
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.readyState === Stream.CLOSED) return;
      let from = 0;
      for (let end = value.indexOf("\n"); end >= 0; end = value.indexOf("\n", from)) {
        line.push(value.slice(from, end));
        event = this.take(line.join(""), event);
        line = [];
        from = end + 1;
      }
      line.push(value.slice(from));
    }
  }

  take(line, event) {
    if (line) {
      const colon = line.indexOf(": ");
      return colon > 0 ? { ...event, [line.slice(0, colon)]: line.slice(colon + 2) } : event;
    }
    this.after = event.id || this.after;
    if (event.event) this.dispatchEvent(new MessageEvent(event.event, { data: event.data, lastEventId: this.after }));
    return {};
  }
}
