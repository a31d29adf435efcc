// The fleet of KCL 3.x: its leader, and its workers with what they report. Hidden for any other fleet.

import { byId, el, say } from "/static/dom.js";
import { counted, duration, number } from "/static/format.js";
import { markOf } from "/static/marks.js";

const HEADS = [["Worker", ""], ["Standing", ""], ["Leases", "right"], ["KiB/s", "right"], ["Reported", "right"], ["Metrics", "hide-narrow"], ["Why", "hide-narrow"]];
const MOST = 50;

export class FleetPanel {
  constructor(store) {
    this.store = store;
    this.drawn = "";
    this.tbody = el("tbody", {});
    const heads = HEADS.map(([text, kind]) => el("th", { scope: "col", class: kind }, text));
    byId("fleet-table").append(el("table", {}, el("caption", { class: "unseen" }, "Workers of the fleet"), el("thead", {}, el("tr", {}, ...heads)), this.tbody));
  }

  draw() {
    const { fleet } = this.store.facts;
    byId("fleet").hidden = !fleet;
    if (!fleet) return;
    const now = this.store.at / 1000 + fleet.skew;
    say(byId("fleet-note"), this.note(fleet));
    byId("fleet-note").classList.toggle("bad", fleet.lacksLeader);
    const rates = this.rates();
    const rows = fleet.members.slice(0, MOST).map((member) => [
      member, member.standing, String(member.leases), rates.has(member.id) ? number(rates.get(member.id)) : "–",
      ago(member.reported === null ? null : now - member.reported), member.metrics ?? "–", member.why,
    ]);
    const key = JSON.stringify(rows);
    if (key === this.drawn) return;
    this.drawn = key;
    const lines = rows.map(([member, ...texts]) => el("tr", {}, el("td", {}, worker(member)), el("td", {}, el("span", { class: `state ${member.standing.replace(" ", "-")}` }, texts[0])), ...texts.slice(1).map((text, at) => el("td", { class: HEADS[at + 2][1] }, text))));
    if (fleet.members.length > MOST) lines.push(el("tr", {}, el("td", { colspan: String(HEADS.length) }, `and ${fleet.members.length - MOST} more`)));
    this.tbody.replaceChildren(...lines);
  }

  note(fleet) {
    const parts = [fleet.clientVersion ?? "client version unknown"];
    if (fleet.native) {
      const still = fleet.lockSince ? `, lock unchanged for ${duration(Math.max(0, (this.store.at - fleet.lockSince) / 1000))}` : "";
      parts.push(fleet.leader ? `leader ${fleet.leader}${still}` : fleet.leaderText);
    }
    parts.push(counted(fleet.members.length, "worker"));
    if (fleet.tableMigration) parts.push(`moving its tables: ${fleet.tableMigration}`);
    return parts.join(" · ");
  }

  /** What each worker delivers, by the leases that it works on. */
  rates() {
    const found = new Map();
    for (const row of this.store.rows.values()) {
      if (row.owner && row.kib !== undefined && row.state !== "ENDED") found.set(row.owner, (found.get(row.owner) ?? 0) + row.kib);
    }
    return found;
  }
}

function worker(member) {
  return el("span", { class: "owner" }, markOf(member), el("span", { class: "name" }, member.name), member.leads ? el("span", { class: "kind" }, "leader") : null);
}

function ago(seconds) {
  if (seconds === null) return "never";
  return seconds < -5 ? `${duration(-seconds)} ahead` : `${duration(Math.max(0, seconds))} ago`;
}
