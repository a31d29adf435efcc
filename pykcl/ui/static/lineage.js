// Every shard a row, time from left to right: who read it when, where it was split and merged. Only the rows in sight
// are drawn, so a thousand cost no more than twenty.

import { byId, el, say, speak } from "/static/dom.js";
import { clock, counted } from "/static/format.js";
import { colourOf, drawMark, markOf, palette } from "/static/marks.js";
import { Twin, plainTable } from "/static/plot.js";

const ROW = 22;
const FOOT = 22;
const BAR = 12;
const DONE = new Set(["ENDED", "GONE"]);
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600];

export class Lineage {
  constructor(store, show) {
    this.store = store;
    this.show = show;
    this.rows = [];
    this.at = -1;
    this.body = byId("panel-lineage").querySelector(".body");
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.spacer = el("div", { class: "spacer" });
    this.scroller = el("div", {
      class: "lines", tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-label": "Lineage of the shards over time. Up and down choose a shard, Enter shows its lease.",
      keydown: (event) => this.onKey(event), scroll: () => this.paint(), pointermove: (event) => this.onPoint(event),
      pointerleave: () => { this.at = -1; this.tip.hidden = true; this.paint(); }, click: () => this.open(),
    }, this.canvas, this.spacer);
    this.tip = el("div", { class: "tip", hidden: true });
    this.empty = el("div", { class: "empty-state", hidden: true });
    this.body.append(this.scroller, this.empty, this.tip);
    new ResizeObserver(() => this.paint()).observe(this.body);
    this.twin = new Twin("panel-lineage", "Lineage", () => this.table());
  }

  draw() {
    this.rows = this.ordered();
    const open = this.rows.filter((row) => !DONE.has(this.last(row.key)[2])).length;
    say(byId("lineage-note"), this.rows.length ? `${counted(this.rows.length, "shard")}, ${open} not ended; time goes right` : "");
    if (this.twin.shows) { this.twin.fill(); return; }
    const nothing = this.rows.length === 0;
    this.empty.hidden = !nothing;
    this.scroller.hidden = nothing;
    if (nothing && !this.empty.childElementCount) this.empty.append(el("strong", {}, "No shards yet"), el("span", {}, "The first worker puts a lease into the table for each."));
    if (!nothing) this.paint();
  }

  last(key) { return this.store.spans.get(key)?.at(-1) ?? [0, null, "GONE"]; }

  /** Parents above their children; what is its own ancestor, by corrupt rows, comes last. */
  ordered() {
    const { store } = this;
    const keys = [...store.spans.keys()].sort();
    const known = new Set(keys);
    const children = new Map();
    for (const key of keys) for (const parent of store.parents.get(key) ?? []) {
      if (known.has(parent) && parent !== key) { if (children.has(parent)) children.get(parent).push(key); else children.set(parent, [key]); }
    }
    const rows = [];
    const seen = new Set();
    const down = (root) => {
      const waiting = [[root, 0]];
      while (waiting.length) {
        const [key, depth] = waiting.pop();
        if (seen.has(key)) continue;
        seen.add(key);
        rows.push({ key, depth, row: rows.length });
        for (const child of [...(children.get(key) ?? [])].reverse()) waiting.push([child, depth + 1]);
      }
    };
    for (const key of keys) if (!(store.parents.get(key) ?? []).some((parent) => known.has(parent))) down(key);
    for (const key of keys) down(key);
    return rows;
  }

  paint() {
    const width = this.body.clientWidth;
    const height = this.body.clientHeight;
    if (!width || !height || this.scroller.hidden || this.twin.shows) return;
    const all = this.rows.length * ROW + FOOT + 4;
    this.spacer.style.height = `${Math.max(0, all - height)}px`;
    const ratio = devicePixelRatio;
    const inner = this.scroller.clientWidth;
    if (this.canvas.width !== Math.round(inner * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(inner * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${inner}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, inner, height);
    this.measure(context, inner, height);
    this.paintTime(context, inner, height);
    const places = new Map(this.rows.map((row) => [row.key, row.row]));
    context.save();
    context.beginPath();
    context.rect(0, 0, inner, height - FOOT);
    context.clip();
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 1);
    const after = Math.min(this.rows.length, first + Math.ceil(height / ROW) + 3);
    for (const row of this.rows.slice(first, after)) this.paintRow(context, row, places, inner);
    context.restore();
    if (this.scroller.scrollTop + height < all - 2) this.fade(context, inner);
  }

  /** There is more below. */
  fade(context, inner) {
    const fading = context.createLinearGradient(0, this.bottom - 18, 0, this.bottom);
    fading.addColorStop(0, `${palette().surface}00`);
    fading.addColorStop(1, palette().surface);
    context.fillStyle = fading;
    context.fillRect(0, this.bottom - 18, inner, 18);
  }

  measure(context, inner, height) {
    context.font = `12px ${palette().mono}`;
    const longest = this.rows.slice(0, 400).reduce((most, row) => Math.max(most, this.label(row).length), 3);
    this.left = Math.min(inner * 0.3, 14 + longest * 7.4);
    this.right = inner > 520 ? Math.min(170, inner * 0.24) : 26;
    this.since = this.store.since;
    this.until = Math.max(this.store.at, this.since + 1000);
    this.bottom = height - FOOT;
  }

  x(millis) {
    const share = (millis - this.since) / (this.until - this.since);
    return this.left + Math.max(0, Math.min(1, share)) * (this.canvas.clientWidth - this.left - this.right);
  }

  y(row) { return row * ROW + ROW / 2 + 2 - this.scroller.scrollTop; }

  label(row) {
    const name = this.store.rows.get(row.key)?.name ?? row.key.replace(/^shardId-0*(?=\d{3})/, "");
    const text = `${"\u00a0".repeat(Math.min(row.depth, 6))}${name}`;
    return text.length > 22 ? `${text.slice(0, 12)}…${text.slice(-8)}` : text;
  }

  paintTime(context, inner, height) {
    const span = (this.until - this.since) / 1000;
    const room = (inner - this.left - this.right) / (span > 240 ? 58 : 78);
    const step = STEPS.find((one) => span / one <= room) ?? 900;
    context.font = `11px ${palette().sans}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const offset = new Date(this.since).getTimezoneOffset() * 60;
    const begin = Math.ceil((this.since / 1000 - offset) / step) * step + offset;
    for (let at = begin; at * 1000 <= this.until; at += step) {
      const x = Math.round(this.x(at * 1000)) + 0.5;
      context.strokeStyle = palette().grid;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height - FOOT);
      context.stroke();
      context.fillStyle = palette().muted;
      if (x > this.left + 20 && x < inner - 24) context.fillText(clock(at * 1000, step < 60), x, height - FOOT / 2);
    }
  }

  paintRow(context, row, places, inner) {
    const y = this.y(row.row);
    const spans = this.store.spans.get(row.key) ?? [];
    if (row.row === this.at) {
      context.fillStyle = palette().sunk;
      context.fillRect(0, y - ROW / 2, inner, ROW);
    }
    this.paintFamily(context, row, spans, places, y);
    spans.forEach((span, at) => this.paintSpan(context, span, spans[at + 1]?.[0] ?? this.until, y, at > 0 && spans[at - 1][1] === span[1]));
    context.font = `12px ${palette().mono}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const [, owner, state] = spans.at(-1) ?? [0, null, "GONE"];
    context.fillStyle = DONE.has(state) ? palette().muted : palette().text;
    context.fillText(this.label(row), 12, y);
    this.paintEnd(context, owner, state, y, inner);
  }

  /** From where a parent ended, down to where this one began. */
  paintFamily(context, row, spans, places, y) {
    context.strokeStyle = palette().muted;
    context.lineWidth = 1.25;
    for (const parent of this.store.parents.get(row.key) ?? []) {
      const place = places.get(parent);
      if (place === undefined || place === row.row) continue;
      const ended = this.store.spans.get(parent)?.find((span) => DONE.has(span[2]));
      const x = this.x(ended ? ended[0] : spans[0]?.[0] ?? this.since);
      const from = this.y(place);
      const way = y > from ? 1 : -1;
      context.beginPath();
      context.moveTo(x, from + way * (BAR / 2));
      context.lineTo(x, y - way * 4);
      context.quadraticCurveTo(x, y, x + 4, y);
      context.stroke();
    }
  }

  paintSpan(context, [from, owner, state], until, y, goesOn) {
    const [x, end] = [this.x(from), this.x(until)];
    const width = Math.max(end - x, 1.5);
    if (state === "GONE" || until < this.since) return;
    if (state === "ENDED") {
      context.strokeStyle = palette().line;
      context.lineWidth = 2;
      line(context, x, y, end, y);
      context.fillStyle = palette().muted;
      context.fillRect(x - 1, y - BAR / 2, 2.5, BAR);
      return;
    }
    if (state === "WAITING" || (owner === null && state !== "ACTIVE")) {
      context.setLineDash(state === "WAITING" ? [1.5, 4] : [5, 4]);
      context.strokeStyle = state === "WAITING" ? palette().muted : palette().warn;
      context.lineWidth = 2;
      line(context, x, y, end, y);
      context.setLineDash([]);
      return;
    }
    const told = this.store.owner(owner);
    context.fillStyle = colourOf(told);
    context.globalAlpha = state === "STALE" ? 0.28 : state === "UNKNOWN" ? 0.72 : 1;
    context.fillRect(x, y - BAR / 2, width, BAR);
    context.globalAlpha = 1;
    if (state === "STALE") hatched(context, x, y, width);
    if (width > 26 && !(goesOn && x > this.left + 1)) drawMark(context, told, x + 10, y, 8, null, palette().surface);
  }

  paintEnd(context, owner, state, y, inner) {
    const x = inner - this.right + 10;
    const text = { ENDED: "ended", GONE: "cleaned up", WAITING: "waits for parents", UNOWNED: "nobody" }[state];
    const roomy = this.right > 60;
    context.font = `12px ${palette().sans}`;
    if (text === undefined) drawMark(context, this.store.owner(owner), x + 5, y, 11, palette().surface);
    if (!roomy) return;
    context.fillStyle = state === "STALE" || state === "UNOWNED" ? palette().bad : text ? palette().muted : palette().text;
    const words = text ?? `${this.store.owner(owner).name}`;
    const stale = state === "STALE" ? " stale" : "";
    const from = text ? x : x + 16;
    context.fillText(clipped(context, words, inner - from - 8 - context.measureText(stale).width) + stale, from, y);
  }

  onPoint(event) {
    const box = this.scroller.getBoundingClientRect();
    const at = Math.floor((event.clientY - box.top - 2 + this.scroller.scrollTop) / ROW);
    this.at = event.clientY - box.top < this.bottom && at < this.rows.length ? at : -1;
    this.scroller.style.cursor = this.at === -1 ? "" : "pointer";
    this.paint();
    const millis = this.since + ((event.clientX - box.left - this.left) / (this.canvas.clientWidth - this.left - this.right)) * (this.until - this.since);
    this.tell(millis, event.clientX - box.left, event.clientY - box.top);
  }

  tell(millis, x, y) {
    const row = this.rows[this.at];
    const spans = row ? this.store.spans.get(row.key) ?? [] : [];
    const span = spans.filter((one) => one[0] <= millis).at(-1);
    this.tip.hidden = span === undefined || x < this.left || x > this.canvas.clientWidth - this.right;
    if (this.tip.hidden) return;
    const owner = this.store.owner(span[1]);
    this.tip.replaceChildren(
      el("p", {}, el("b", {}, `${this.label(row).trim()}  ${span[2] === "GONE" ? "cleaned up" : span[2]}`)),
      el("p", {}, markOf(owner), ` ${owner.name}`), el("p", { class: "muted" }, `since ${clock(span[0])}`),
    );
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, this.body.clientWidth - this.tip.offsetWidth - 6))}px`;
    this.tip.style.top = `${Math.max(2, Math.min(y + 12, this.body.clientHeight - this.tip.offsetHeight - 2))}px`;
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      this.at = Math.max(0, Math.min(this.rows.length - 1, this.at + step));
      const top = this.at * ROW;
      if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
      if (top + ROW > this.scroller.scrollTop + this.bottom) this.scroller.scrollTop = top + ROW - this.bottom;
      this.paint();
      const [, owner, state] = this.last(this.rows[this.at].key);
      speak(`${this.label(this.rows[this.at]).trim()}, ${state}, ${this.store.owner(owner).name}`);
    } else if (event.key === "Enter") {
      // Else this very key would press what the dialog puts the focus on.
      event.preventDefault();
      this.open();
    }
  }

  open() {
    const row = this.rows[this.at];
    if (row && this.store.rows.has(row.key)) this.show(row.key);
  }

  table() {
    const { store } = this;
    const names = (keys) => keys.map((key) => store.rows.get(key)?.name ?? key.replace(/^shardId-0*(?=\d{3})/, "")).join(", ") || "–";
    const columns = [
      ["Shard", (row) => el("span", { class: "mono" }, this.label(row))],
      ["Parents", (row) => names(store.parents.get(row.key) ?? [])],
      ["State", (row) => el("span", { class: `state ${this.last(row.key)[2]}` }, this.last(row.key)[2])],
      ["Since", (row) => clock(this.last(row.key)[0])],
      ["Owners, latest first", (row) => owners(store, row.key)],
    ];
    const shown = this.rows.slice(0, 300);
    const table = plainTable("Lineage: shards below their parents", columns, shown, "There are no shards yet.");
    return this.rows.length > 300 ? el("div", {}, table, el("p", { class: "pager" }, `and ${this.rows.length - 300} more: see Leases`)) : table;
  }
}

function owners(store, key) {
  const seen = [...new Set((store.spans.get(key) ?? []).map((span) => span[1]).filter(Boolean).reverse())].slice(0, 4);
  const told = el("span", {});
  seen.forEach((name) => told.append(el("span", { class: "owner" }, markOf(store.owner(name)), el("span", { class: "name" }, store.owner(name).name)), " "));
  return seen.length ? told : "–";
}

function line(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}

function hatched(context, x, y, width) {
  context.save();
  context.beginPath();
  context.rect(x, y - BAR / 2, width, BAR);
  context.clip();
  context.strokeStyle = palette().bad;
  context.lineWidth = 1.5;
  for (let at = x - BAR; at < x + width; at += 6) line(context, at, y + BAR / 2, at + BAR, y - BAR / 2);
  context.restore();
  context.strokeStyle = palette().bad;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y - BAR / 2 + 0.5, Math.max(0, width - 1), BAR - 1);
}

function clipped(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let short = text;
  while (short.length > 2 && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return `${short}…`;
}
