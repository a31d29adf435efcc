// The table of all leases: sorted, filtered, fifty at a time. Rows are changed in place.

import { byId, el, say } from "/static/dom.js";
import { checkpoint, duration } from "/static/format.js";
import { markOf } from "/static/marks.js";

const PAGE = 50;
const ORDER = ["UNREADABLE", "STALE", "NO LEASE", "UNOWNED", "UNKNOWN", "ACTIVE", "WAITING", "ENDED", "FOREIGN"];

export class LeaseTable {
  constructor(store, show) {
    this.store = store;
    this.show = show;
    this.sort = ["shard", 1];
    this.page = 0;
    this.owner = null;
    this.columns = [
      ["shard", "Shard", "", ([key]) => key],
      ["state", "State", "", ([, row]) => ORDER.indexOf(row.state)],
      ["owner", "Owner", "", ([, row]) => (row.owner ? store.owner(row.owner).name : "\uffff")],
      ["behind", "Behind", "right", ([, row]) => -(row.lag?.behind ?? -1)],
      ["moved", "Counter moved", "right hide-narrow", ([, row]) => -(row.moved ?? 0)],
      ["checkpoint", "Checkpoint", "hide-narrow mono", ([, row]) => row.checkpoint ?? ""],
      ["counter", "Counter", "right hide-narrow", ([, row]) => -(row.counter ?? -1)],
      ["family", "Parents", "hide-narrow", ([, row]) => (row.parents ?? []).join()],
    ];
    this.heads = this.columns.map(([name, text, kind]) => el("th", { scope: "col", class: kind }, el("button", { type: "button", click: () => this.by(name) }, text)));
    this.rows = [];
    this.tbody = el("tbody", {});
    this.pager = el("div", { class: "pager" });
    this.none = el("p", { class: "pager", hidden: true });
    byId("lease-table").append(el("table", {}, el("caption", { class: "unseen" }, "All leases"), el("thead", {}, el("tr", {}, ...this.heads)), this.tbody), this.none, this.pager);
    byId("filter").addEventListener("input", () => { this.page = 0; this.draw(); });
    this.back = el("button", { type: "button", click: () => this.turn(-1) }, "Back");
    this.next = el("button", { type: "button", click: () => this.turn(1) }, "Next");
    this.place = el("span", {});
    this.pager.append(this.back, this.next, this.place);
  }

  by(name) {
    this.sort = [name, this.sort[0] === name ? -this.sort[1] : 1];
    this.page = 0;
    this.draw();
  }

  turn(step) { this.page += step; this.draw(); }

  only(owner) { this.owner = owner; this.page = 0; this.draw(); }

  found() {
    const text = byId("filter").value.trim().toLowerCase();
    const found = [...this.store.rows.entries()].filter(([key, row]) => {
      if (this.owner !== null && row.owner !== this.owner) return false;
      return text === "" || [key, row.name, row.state, row.what ?? "", row.owner ? this.store.owner(row.owner).name : ""].some((one) => one.toLowerCase().includes(text));
    });
    const value = this.columns.find(([name]) => name === this.sort[0])[3];
    const keyed = found.map((one) => [value(one), one]);
    keyed.sort(([a, [one]], [b, [other]]) => (a < b ? -1 : a > b ? 1 : one < other ? -1 : 1) * this.sort[1]);
    return keyed.map(([, one]) => one);
  }

  draw() {
    const all = this.found();
    const pages = Math.max(1, Math.ceil(all.length / PAGE));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const shown = all.slice(this.page * PAGE, this.page * PAGE + PAGE);
    this.columns.forEach(([name], at) => {
      if (name === this.sort[0]) this.heads[at].setAttribute("aria-sort", this.sort[1] > 0 ? "ascending" : "descending");
      else this.heads[at].removeAttribute("aria-sort");
    });
    while (this.rows.length < shown.length) this.rows.push(this.newRow());
    shown.forEach(([key, row], at) => this.fill(this.rows[at], key, row));
    this.rows.forEach((row, at) => { if (at < shown.length) { if (!row.line.isConnected) this.tbody.append(row.line); } else row.line.remove(); });
    const total = this.store.rows.size;
    this.none.hidden = all.length > 0;
    say(this.none, total === 0 ? "The lease table has no rows: no worker has started yet, or its leases were deleted." : "No lease is like that.");
    this.pager.hidden = pages === 1;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    say(this.place, `${this.page * PAGE + 1} to ${this.page * PAGE + shown.length} of ${all.length}`);
    const which = this.owner === null ? "" : ` of ${this.store.owner(this.owner).name}`;
    say(byId("leases-note"), all.length === total ? `${total}` : `${all.length}${which} of ${total}`);
  }

  newRow() {
    const cells = this.columns.map(([, , kind]) => el("td", { class: kind }));
    const row = { key: null, cells, line: el("tr", {}, ...cells), owner: undefined };
    row.name = el("button", { type: "button", class: "link", click: () => this.show(row.key) });
    row.state = el("span", {});
    cells[0].append(row.name);
    cells[1].append(row.state);
    return row;
  }

  fill(row, key, told) {
    const { store } = this;
    row.key = key;
    say(row.name, told.name);
    say(row.state, told.state);
    row.state.className = `state ${told.state.replace(" ", "-")}`;
    const owner = store.owner(told.owner);
    const next = told.next ? store.owner(told.next) : null;
    const mark = `${told.owner} ${owner.kind} ${owner.name} ${told.next}`;
    if (row.owner !== mark) {
      row.owner = mark;
      const kind = owner.kind && owner.kind !== "unknown" ? el("span", { class: "kind" }, owner.kind) : null;
      const nobody = told.counter === undefined ? told.what : "–";
      row.cells[2].replaceChildren(told.owner ? el("span", { class: "owner" }, markOf(owner), el("span", { class: "name" }, owner.name), kind, next ? el("span", { class: "kind", title: "is being handed over" }, "→") : null, next ? markOf(next) : null, next ? el("span", { class: "name" }, told.nextName) : null) : nobody);
    }
    const waits = told.waits?.length ? `waits for ${told.waits.map((one) => store.rows.get(one)?.name ?? one).join(", ")}` : null;
    say(row.cells[3], told.lag ? duration(told.lag.behind) : "–");
    say(row.cells[4], told.owner && told.moved && told.state !== "ENDED" ? `${duration(Math.max(0, (store.at - told.moved) / 1000))} ago` : "–");
    say(row.cells[5], checkpoint(told.checkpoint));
    say(row.cells[6], told.counter === undefined ? "–" : String(told.counter));
    say(row.cells[7], waits ?? ((told.parents ?? []).map((one) => store.rows.get(one)?.name ?? one.replace(/^shardId-0*(?=\d{3})/, "")).join(", ") || "–"));
  }
}
