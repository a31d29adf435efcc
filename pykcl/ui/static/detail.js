// One lease in full, and where that is allowed the two things that may be done: release it, reset checkpoints. Each shows
// its plan first, and is carried out once the application's name has been typed.

import { byId, el } from "/static/dom.js";
import { clock, duration } from "/static/format.js";
import { markOf } from "/static/marks.js";
import { pageSecret } from "/static/session.js";

export class Detail {
  constructor(store) {
    this.store = store;
    this.dialog = byId("detail");
    this.key = null;
    this.facts = null;
    byId("reset").addEventListener("click", () => this.reset());
    // Told a moment after it was closed: another lease may have been opened in between.
    this.dialog.addEventListener("close", () => { if (!this.dialog.open) this.key = null; });
  }

  lease(key) {
    const row = this.store.rows.get(key);
    if (!row) return;
    this.key = key;
    this.facts = el("dl", { class: "facts" });
    const parts = [this.facts];
    if (this.store.facts.acts && row.counter !== undefined) parts.push(this.releasing(key));
    this.open([markOf(this.store.owner(row.owner)), el("span", {}, `Lease ${row.name}`)], parts);
    this.draw();
  }

  open(title, parts) {
    const close = el("button", { type: "button", click: () => this.dialog.close() }, "Close");
    this.dialog.replaceChildren(el("div", { class: "head" }, el("h2", { id: "detail-title" }, ...title), close), el("div", { class: "in" }, ...parts));
    if (!this.dialog.open) this.dialog.showModal();
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
      ["Behind", row.lag ? (row.lag.behind === null ? `unknown: ${row.lag.why ?? ""}` : `${duration(row.lag.behind)}, told by ${row.lag.source} at ${clock(row.lag.at)}${row.lag.why ? `; ${row.lag.why}` : ""}`) : ""],
      ["Checkpoint", row.checkpoint ?? ""],
      ["Counter", row.counter === undefined ? "" : `${row.counter}, moved ${ago(row.moved)}`],
      ["Switches", row.switches ? `${row.switches} without a checkpoint` : ""],
      ["Parents", names(row.parents)],
      ["Waits for", names(row.waits)],
      ["Children", names(row.children)],
    ].filter(([, value]) => value !== "");
  }

  // -- release -----------------------------------------------------------------------------------------------

  releasing(key) {
    const place = el("div", { class: "act" });
    const look = el("button", { type: "button", class: "danger", click: async () => {
      look.disabled = true;
      const plan = await this.job({ do: "plan-release", key }, place);
      look.disabled = false;
      if (plan) this.confirmed(place, plan.plan, [
        el("p", {}, `Writes: owner ${plan.owner} is removed, counter ${plan.counter} becomes ${plan.after}, checkpoint ${plan.checkpoint} stays; and only if counter and owner are still so.`),
        el("p", { class: "muted" }, "An owner that is alive notices at its next renewal. What it has read since its last checkpoint comes again at the next owner; nothing is lost."),
      ], "release", "Release", (done) => (done.outcome === "taken" ? `Released, and taken already, by ${done.owner}.` : `Released: it has no owner now, counter ${done.counter}.`));
    } }, "Release this lease…");
    place.append(el("div", { class: "row" }, look, el("span", { class: "muted" }, "shows first what it would write")));
    return place;
  }

  // -- reset -------------------------------------------------------------------------------------------------

  reset() {
    this.key = null;
    const to = el("select", { id: "reset-to", change: () => place.dispatchEvent(new Event("kind")) },
      ...[["earliest", "the oldest record that is kept"], ["latest", "behind the newest record"], ["minutes", "so many minutes back"], ["datetime", "a time"]].map(([value, text]) => el("option", { value }, text)));
    const value = el("input", { type: "text", id: "reset-value", hidden: true, "aria-label": "Value", spellcheck: "false", autocomplete: "off" });
    const place = el("div", { class: "act", kind: () => {
      value.hidden = !["minutes", "datetime"].includes(to.value);
      value.placeholder = to.value === "minutes" ? "90" : "2026-11-20T09:00Z";
    } });
    const plan = el("button", { type: "button", class: "primary", click: async () => {
      plan.disabled = true;
      const asked = { do: "plan-reset", to: to.value, value: to.value === "minutes" ? Number(value.value) : value.value };
      const found = await this.job(asked, place);
      plan.disabled = false;
      if (found) this.planned(place, found);
    } }, "Show the plan");
    place.append(el("div", { class: "row" }, plan));
    this.open([el("span", {}, "Reset checkpoints")], [
      el("p", { class: "muted" }, "Moves the checkpoints of a stopped fleet. First the plan is shown; nothing is written for it. A backup is kept before anything is written, and pykcl checkpoint import puts it back."),
      el("div", { class: "row act" }, el("label", { for: "reset-to" }, "All shards, to"), to, value), place,
    ]);
  }

  planned(place, found) {
    const columns = [["Shard", "shard"], ["Now", "current"], ["Then", "new"], ["Resumes at", "resumes_at"], ["Comes again", "replays_seconds"]];
    const cell = (row, name) => (name === "replays_seconds"
      ? row.skips_seconds !== null ? `skips ≈ ${duration(row.skips_seconds)}` : row[name] === null ? "–" : `≈ ${duration(row[name])}`
      : short(row[name]));
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([text]) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...found.rows.slice(0, 500).map((row) => el("tr", {}, ...columns.map(([, name]) => el("td", { class: name === "shard" ? "" : "mono", title: row[name] ?? "" }, cell(row, name)))))));
    const parts = [
      el("h3", {}, `Plan for stream ${found.stream}: ${found.what}, ${found.changes} of ${found.rows.length} rows change`),
      el("div", { class: "planned", tabindex: "0", role: "region", "aria-label": "Plan" }, table), ...found.hints.map((hint) => el("p", { class: found.active ? "problem" : "muted" }, hint)),
    ];
    if (found.plan) this.confirmed(place, found.plan, parts, "reset", "Reset", (done) => `Done: ${done.written} rows written and read again, by ${done.by}. Backup: ${done.backup}`);
    else this.filled(place, [...parts, el("p", {}, "There is nothing to do: every row is there already.")]);
  }

  // -- both --------------------------------------------------------------------------------------------------

  filled(place, parts) {
    place.querySelector(".plan")?.remove();
    place.append(el("div", { class: "plan act" }, ...parts));
  }

  confirmed(place, plan, parts, what, word, told) {
    const name = this.store.facts.application;
    const typed = el("input", { type: "text", spellcheck: "false", autocomplete: "off", "aria-label": "The application's name, to confirm", placeholder: name, input: () => { go.disabled = typed.value !== name; } });
    const go = el("button", { type: "button", class: "do", disabled: true, click: async () => {
      go.disabled = true;
      const done = await this.job({ do: what, plan, confirm: typed.value }, place);
      if (done) this.filled(place, [el("p", {}, told(done))]);
    } }, word);
    this.filled(place, [...parts, el("div", { class: "row" }, el("span", {}, `Type ${name} to confirm:`), typed, go)]);
  }

  /** What came of it, or null; then the problem is told in `place`. */
  async job(asked, place) {
    place.querySelectorAll(":scope > .problem, :scope > .progress").forEach((one) => one.remove());
    const progress = el("p", { class: "muted progress", role: "status" }, "…");
    place.append(progress);
    const problem = (text) => { progress.remove(); place.append(el("p", { class: "problem", role: "alert" }, text)); return null; };
    const headers = { "Content-Type": "application/json", "X-Pykcl-Page": pageSecret() };
    try {
      const begun = await fetch("/api/jobs", { method: "POST", headers, body: JSON.stringify(asked) });
      if (!begun.ok) return problem((await begun.text()).trim());
      const { job } = await begun.json();
      for (;;) {
        const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}`, { headers });
        if (!answer.ok) return problem((await answer.text()).trim());
        const told = await answer.json();
        if (told.state === "done") { progress.remove(); return told.result; }
        if (told.state !== "running") return problem(told.problem + (told.result.backup ? ` The backup of before is ${told.result.backup}.` : ""));
        progress.textContent = told.progress || "…";
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    } catch {
      return problem("Nobody answers any more.");
    }
  }
}

function short(text) {
  if (text === null || text === undefined) return "–";
  return /^\d{20,}/.test(text) ? text.replace(/^(\d{4})\d+(\d{6})/, "$1…$2") : text;
}

/** Names that were not made inert by the server: whatever does not print is shown as its number. */
function inert(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, (one) => (one === " " ? one : `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`)).slice(0, 400);
}
