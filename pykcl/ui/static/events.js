// What happened, newest first.

import { byId, el, say } from "/static/dom.js";
import { clock, counted } from "/static/format.js";
import { markOf } from "/static/marks.js";

const MOST_SHOWN = 120;

export class Events {
  constructor(store) {
    this.store = store;
    this.number = -1;
    byId("only-bad").addEventListener("change", () => { this.number = -1; this.draw(); });
  }

  draw() {
    const { store } = this;
    if (this.number === store.eventNumber) return;
    this.number = store.eventNumber;
    const only = byId("only-bad").checked;
    const found = store.events.filter((event) => !only || event.tone === "bad");
    say(byId("events-note"), store.events.length ? counted(found.length, "event") : "");
    const shown = found.slice(-MOST_SHOWN).reverse();
    if (shown.length) byId("events").replaceChildren(...shown.map(line));
    else byId("events").replaceChildren(el("div", { class: "empty-state" }, el("strong", {}, only ? "No trouble so far" : "Nothing has happened yet"), el("span", {}, "Owner changes, splits, ends and stalls appear here as they are seen.")));
  }
}

function line(event) {
  const parts = [];
  if (event.name) parts.push(el("b", {}, event.name), " ");
  if (event.before) parts.push(markOf(event.before), ` ${event.before.name} `);
  if (event.before && event.after) parts.push("→ ");
  if (event.after) parts.push(markOf(event.after), ` ${event.after.name} `);
  parts.push(el("span", { class: "what" }, event.text));
  return el("div", { class: `event ${event.tone}` }, el("time", { datetime: new Date(event.at).toISOString() }, clock(event.at)), el("p", {}, ...parts));
}
