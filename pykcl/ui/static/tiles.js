// The four numbers at the top, the owners, the hints and what stands below the page.

import { byId, el, say } from "/static/dom.js";
import { counted, duration, number } from "/static/format.js";
import { markOf } from "/static/marks.js";

const STATES = ["STALE", "UNREADABLE", "NO LEASE", "UNOWNED", "UNKNOWN", "ACTIVE", "WAITING", "ENDED", "FOREIGN"];
const MOST_OWNERS = 10;

export class Tiles {
  constructor(store, rates, table) {
    this.store = store;
    this.rates = rates;
    this.table = table;
    this.said = "";
    this.showsAll = false;
  }

  draw() {
    const { store } = this;
    const { facts } = store;
    say(byId("application"), facts.application ?? "…");
    document.title = `${facts.application ?? "pykcl"} · pykcl`;
    say(byId("about"), [facts.stream ? `stream ${facts.stream}` : null, facts.region, schemaOf(facts.schema)].filter(Boolean).join(" · "));
    this.lag();
    this.rate();
    this.workers();
    this.leases(facts.counts ?? {});
    this.owners();
    this.words();
  }

  lag() {
    let worst = null;
    let unknown = 0;
    for (const [key, row] of this.store.rows) {
      if (!["ACTIVE", "STALE", "UNKNOWN", "UNOWNED", "NO LEASE"].includes(row.state)) continue;
      if (!row.lag || row.lag.behind === null) unknown += 1;
      else if (worst === null || row.lag.behind > worst.behind) worst = { key, behind: row.lag.behind, row };
    }
    say(byId("tile-lag"), worst === null ? "–" : duration(worst.behind));
    const owner = worst === null ? null : this.store.owner(worst.row.owner);
    const missing = unknown ? `, unknown of ${unknown}` : "";
    const note = worst === null ? (unknown ? `unknown of ${counted(unknown, "shard")}` : "nothing to read") : worst.behind < 0.05 ? `all at the tip${missing}` : `shard ${worst.row.name}${missing}`;
    this.noted("tile-lag-note", note, worst !== null && worst.behind >= 0.05 ? owner : null);
  }

  noted(id, text, owner) {
    const key = `${text} ${owner?.name} ${owner?.shape}`;
    const place = byId(id);
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    place.title = owner ? `${text}, ${owner.name}` : text;
    place.replaceChildren(...(owner ? [markOf(owner), text] : [text]));
  }

  rate() {
    const found = this.rates.latest();
    say(byId("tile-rate-name"), this.store.facts.rateUnit === "records" ? "Throughput" : "Checkpoints");
    say(byId("tile-rate"), found === null ? "–" : number(found));
    say(byId("tile-rate-note"), found === null ? "nobody tells yet" : this.rates.unit);
  }

  workers() {
    const working = [...this.store.owners.values()].filter((owner) => owner.leases > 0 || owner.says);
    const kinds = new Map();
    for (const owner of working) kinds.set(owner.kind, (kinds.get(owner.kind) ?? 0) + 1);
    const stale = working.filter((owner) => owner.leases > 0 && owner.stale >= owner.leases).length;
    say(byId("tile-workers"), String(working.length));
    const told = [...kinds].sort().map(([kind, many]) => `${many} ${kind}`).join(", ");
    say(byId("tile-workers-note"), stale ? `${told}; ${stale} silent` : told || "nobody owns a lease");
    byId("tile-workers").classList.toggle("bad", stale > 0);
  }

  leases(counts) {
    const many = STATES.filter((state) => counts[state]);
    say(byId("tile-leases"), String(Object.values(counts).reduce((sum, one) => sum + one, 0)));
    const key = JSON.stringify(counts);
    if (byId("tile-states").dataset.key === key) return;
    byId("tile-states").dataset.key = key;
    byId("tile-states").title = many.map((state) => `${counts[state]} ${state}`).join(", ");
    byId("tile-states").replaceChildren(...many.map((state) => el("span", { class: `count ${state.replace(" ", "-")}` }, `${counts[state]} ${state.toLowerCase()}`)));
  }

  owners() {
    const listed = [...this.store.owners.entries()].sort(([one, a], [other, b]) => (b.leases > 0) - (a.leases > 0) || (one < other ? -1 : 1));
    const shown = this.showsAll ? listed : listed.slice(0, MOST_OWNERS);
    const key = JSON.stringify([shown, this.table.owner, listed.length]);
    if (key === this.said) return;
    this.said = key;
    const focused = document.activeElement?.dataset?.owner;
    const chips = shown.map(([id, owner]) => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(this.table.owner === id), class: owner.leases ? "" : "gone", "data-owner": owner.name, title: `${owner.name}: ${owner.kind}, ${owner.why}`,
      click: () => { this.table.only(this.table.owner === id ? null : id); this.owners(); },
    }, markOf(owner), el("span", { class: "name" }, owner.name), el("span", { class: "small" }, chip(owner)))));
    if (listed.length > MOST_OWNERS) {
      const text = this.showsAll ? "show fewer" : `and ${listed.length - shown.length} more`;
      chips.push(el("li", {}, el("button", { type: "button", "aria-expanded": String(this.showsAll), click: () => { this.showsAll = !this.showsAll; this.owners(); } }, text)));
    }
    if (!chips.length) chips.push(el("li", { class: "empty" }, "Nobody owns a lease. Whoever takes one gets a colour and a shape here, the same on the whole page."));
    byId("owners").replaceChildren(...chips);
    if (focused !== undefined) [...byId("owners").querySelectorAll("button")].find((button) => button.dataset.owner === focused)?.focus();
  }

  words() {
    const { facts } = this.store;
    const hints = facts.hints ?? [];
    byId("hints").hidden = hints.length === 0;
    const key = JSON.stringify(hints);
    if (byId("hints").dataset.key !== key) {
      byId("hints").dataset.key = key;
      byId("hint-list").replaceChildren(...hints.map((hint) => el("li", {}, hint)));
    }
    const failover = facts.failoverTold ? `${facts.failover}s` : `${facts.failover}s, a guess: set it with --failover`;
    say(byId("foot"), [
      facts.every ? `The lease table is read every ${duration(facts.every)} (${facts.units} read units)` : null,
      facts.failover ? `failover time ${failover}` : null,
    ].filter(Boolean).join("; ").concat(". ", [facts.lagSource, facts.pace, facts.rateNote].filter(Boolean).join(" ")));
  }
}

function chip(owner) {
  if (!owner.leases) return owner.says ? owner.says.state : "gone";
  const parts = [counted(owner.leases, "lease")];
  if (owner.kind !== "unknown") parts.push(owner.kind);
  if (owner.stale) parts.push(owner.stale >= owner.leases ? "silent" : `${owner.stale} stale`);
  if (owner.says?.stalled) parts.push("stalled");
  if (owner.says?.paused) parts.push(owner.says.paused >= owner.leases ? "paused" : `${owner.says.paused} paused`);
  return parts.join(" · ");
}

/** Which KCL's table it is, if that can be told. */
function schemaOf(schema) {
  if (schema === "empty") return "the table is empty";
  return schema === "unknown" ? null : schema;
}
