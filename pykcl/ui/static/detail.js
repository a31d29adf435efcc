// One lease in full.

import { byId, el } from "/static/dom.js";
import { clock, duration } from "/static/format.js";
import { markOf } from "/static/marks.js";

export class Detail {
  constructor(store) {
    this.store = store;
    this.dialog = byId("detail");
    this.key = null;
    this.facts = null;
    // Told a moment after it was closed: another lease may have been opened in between.
    this.dialog.addEventListener("close", () => { if (!this.dialog.open) this.key = null; });
  }

  lease(key) {
    const row = this.store.rows.get(key);
    if (!row) return;
    this.key = key;
    this.facts = el("dl", { class: "facts" });
    const title = el("h2", { id: "detail-title" }, markOf(this.store.owner(row.owner)), el("span", {}, `Lease ${row.name}`));
    const close = el("button", { type: "button", click: () => this.dialog.close() }, "Close");
    this.dialog.replaceChildren(el("div", { class: "head" }, title, close), el("div", { class: "in" }, this.facts));
    if (!this.dialog.open) this.dialog.showModal();
    this.draw();
  }

  draw() {
    if (this.key === null || !this.dialog.open) return;
    const row = this.store.rows.get(this.key);
    const facts = row ? this.told(this.key, row) : [["State", "its row was deleted"]];
    const said = JSON.stringify(facts);
    if (this.facts.dataset.said === said) return;
    this.facts.dataset.said = said;
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  told(key, row) {
    const { store } = this;
    const owner = store.owner(row.owner);
    const names = (keys) => (keys ?? []).map((one) => store.rows.get(one)?.name ?? one).join(", ");
    const ago = (millis) => `${duration(Math.max(0, (store.at - millis) / 1000))} ago`;
    return [
      ["Lease key", inert(key)],
      ["State", row.what ? `${row.state}: ${row.what}` : row.state],
      ["Owner", row.owner ? owner.name : row.counter === undefined ? "" : "nobody"],
      ["Kind of owner", row.owner && owner.kind ? `${owner.kind}: ${owner.why}` : ""],
      ["Version", row.owner ? owner.version ?? "" : ""],
      ["Says of itself", owner.says ? [owner.says.state, owner.says.ready ? "ready" : "not ready", ...owner.says.troubles].join("; ") : ""],
      ["Next owner", row.next ? inert(row.next) : ""],
      ["Read by", row.consumer ? `enhanced fan-out, consumer ${row.consumer}` : ""],
      ["Throughput", row.kib === undefined ? "" : `${row.kib} KiB/s`],
      ["Behind", row.lag ? (row.lag.behind === null ? `unknown: ${row.lag.why ?? ""}` : `${duration(row.lag.behind)}, told by ${row.lag.source} at ${clock(row.lag.at)}${row.lag.why ? `; ${row.lag.why}` : ""}`) : ""],
      ["Checkpoint", row.checkpoint ?? ""],
      ["Counter", row.counter === undefined ? "" : `${row.counter}, moved ${ago(row.moved)}`],
      ["Switches", row.switches ? `${row.switches} without a checkpoint` : ""],
      ["Parents", names(row.parents)],
      ["Waits for", names(row.waits)],
      ["Children", names(row.children)],
    ].filter(([, value]) => value !== "");
  }
}

/** Names that were not made inert by the server: whatever does not print is shown as its number. */
function inert(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, (one) => (one === " " ? one : `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`)).slice(0, 400);
}
