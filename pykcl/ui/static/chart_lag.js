// Lag per shard over time. A line has the colour of whoever owned the shard then, and ends in that owner's mark.

import { byId, el, say } from "/static/dom.js";
import { clock, counted, duration, ticks } from "/static/format.js";
import { colourOf, drawMark, markOf, palette } from "/static/marks.js";
import { Plot, Twin, plainTable } from "/static/plot.js";

const MOST_LINES = 40;
const OPEN = new Set(["ACTIVE", "STALE", "UNKNOWN", "UNOWNED", "NO LEASE"]);

export class LagChart {
  constructor(store, show) {
    this.store = store;
    this.lines = [];
    this.plot = new Plot(byId("panel-lag").querySelector(".body"), "Lag per shard over time. Arrow keys move through time.", {
      shape: () => this.shape(), tip: (index, y) => this.tip(index, y), ends: (uplot) => this.ends(uplot),
    });
    this.twin = new Twin("panel-lag", "Lag per shard", () => this.table(show));
  }

  draw() {
    const { store } = this;
    this.lines = this.chosen();
    const known = [...store.lag.keys()].length;
    const more = known > this.lines.length ? `the ${MOST_LINES} furthest behind of ${known}; ` : "";
    say(byId("lag-note"), known && this.lines.some((line) => line.rank > -1) ? `${more}coloured by who owned the shard then` : "");
    if (this.twin.shows) { this.twin.fill(); return; }
    if (!this.lines.some((line) => line.points.some((point) => point[1] !== null))) this.plot.nothing(...this.why());
    else this.plot.draw(store.since, store.at);
  }

  why() {
    const { facts, rows } = this.store;
    if (facts.lagProblem) return ["Nobody tells the lag", facts.lagProblem];
    if (rows.size === 0) return ["No leases yet", "As soon as a worker reads a shard, its lag is here."];
    if (![...rows.values()].some((row) => OPEN.has(row.state))) return ["Nothing to read", "Every shard was read to its end, or waits for its parents."];
    const why = [...rows.values()].find((row) => row.lag?.why)?.lag.why;
    if (why) return ["The lag is unknown", why];
    if (facts.lagSource?.includes("nobody")) return ["Lag is not asked for", "The page was started with --no-lag."];
    return ["Asking for the lag", "The first answers come within seconds."];
  }

  /** Furthest behind first; of equals in the order of their names. */
  chosen() {
    const { store } = this;
    const found = [...store.lag.entries()].map(([key, points]) => {
      const row = store.rows.get(key);
      const last = points.at(-1)[1];
      return { key, points, name: row?.name ?? key, rank: row && OPEN.has(row.state) ? last ?? 0 : -1 };
    });
    found.sort((one, other) => other.rank - one.rank || (one.key < other.key ? -1 : 1));
    return found.slice(0, MOST_LINES).sort((one, other) => (one.key < other.key ? -1 : 1));
  }

  /** One series for each shard and owner, so that a line changes its colour where the shard changed hands. */
  shape() {
    const { store } = this;
    const xs = [...new Set(this.lines.flatMap((line) => line.points.map((point) => Math.round(point[0] / 500) / 2)))].sort((a, b) => a - b);
    const place = new Map(xs.map((x, at) => [x, at]));
    const series = [];
    const data = [xs];
    let top = 4;
    this.tips = [];
    for (const line of this.lines) {
      const pieces = new Map();
      let before = null;
      for (const [millis, behind] of line.points) {
        const at = place.get(Math.round(millis / 500) / 2);
        const owner = store.ownerAt(line.key, millis);
        if (!pieces.has(owner)) pieces.set(owner, new Array(xs.length));
        const piece = pieces.get(owner);
        // The step from one owner to the next belongs to the new one.
        if (before !== null && before.owner !== owner && before.behind !== null) {
          if (piece[before.at] === undefined) piece[before.at] = before.behind;
          pieces.get(before.owner)[at] = null;
        }
        piece[at] = behind;
        if (behind !== null && behind > top && millis >= store.since - 1000) top = behind;
        before = { at, owner, behind, x: xs[at] };
      }
      for (const [owner, values] of pieces) {
        series.push({ label: `${line.key} ${owner}`, stroke: colourOf(store.owner(owner)), width: 1.75, points: { show: values.filter((value) => value !== undefined).length < 2, size: 4, fill: colourOf(store.owner(owner)) }, spanGaps: false });
        data.push(values);
      }
      line.pieces = pieces;
      line.end = before;
    }
    return { series, data, range: [0, top * 1.12], format: ticks };
  }

  ends(uplot) {
    const { ctx: context } = uplot;
    const ratio = devicePixelRatio;
    const most = this.lines.length > 12 ? 7 : 10;
    if (this.lines.length <= 16) this.along(uplot, ratio);
    for (const line of this.lines) {
      const row = this.store.rows.get(line.key);
      if (line.end === null || line.end.behind === null || !row || !OPEN.has(row.state)) continue;
      const x = Math.min(uplot.valToPos(line.end.x, "x", true), uplot.bbox.left + uplot.bbox.width);
      const y = uplot.valToPos(line.end.behind, "y", true);
      if (x >= uplot.bbox.left) drawMark(context, this.store.owner(row.owner), x, y, most * ratio, palette().surface);
    }
  }

  /** Small marks on the way, for whoever cannot tell colours: where a line changes hands, and now and then. */
  along(uplot, ratio) {
    this.lines.forEach((line, number) => {
      let next = uplot.bbox.left + (24 + (number * 37) % 140) * ratio;
      let before;
      for (const [millis, behind] of line.points) {
        const x = uplot.valToPos(millis / 1000, "x", true);
        const owner = this.store.ownerAt(line.key, millis);
        const changed = before !== undefined && owner !== before;
        before = owner;
        if (behind === null || x < uplot.bbox.left || (x < next && !changed)) continue;
        next = x + 140 * ratio;
        drawMark(uplot.ctx, this.store.owner(owner), x, uplot.valToPos(behind, "y", true), 7 * ratio, palette().surface);
      }
    });
  }

  tip(index, y) {
    let best = null;
    const x = this.plot.uplot.data[0][index];
    for (const line of this.lines) {
      for (const [owner, values] of line.pieces) {
        const found = nearest(values, index, this.plot.uplot.data[0], x);
        if (found === null) continue;
        const distance = Math.abs(found - y);
        if (best === null || distance < best.distance) best = { distance, line, owner, behind: found };
      }
    }
    if (best === null) return null;
    const owner = this.store.owner(best.owner);
    return [
      el("p", {}, el("b", {}, `${best.line.name}  ${duration(best.behind)} behind`)),
      el("p", {}, markOf(owner), ` ${owner.name}`),
      el("p", { class: "muted" }, clock(x * 1000)),
    ];
  }

  table(show) {
    const { store } = this;
    const rows = [...store.rows.entries()].filter(([, row]) => OPEN.has(row.state))
      .sort(([one, a], [other, b]) => (b.lag?.behind ?? -1) - (a.lag?.behind ?? -1) || (one < other ? -1 : 1));
    const shown = rows.slice(0, 200);
    const columns = [
      ["Shard", ([key, row]) => el("button", { type: "button", class: "link", click: () => show(key) }, row.name)],
      ["Owner", ([, row]) => el("span", { class: "owner" }, markOf(store.owner(row.owner)), el("span", { class: "name" }, store.owner(row.owner).name))],
      ["Behind", ([, row]) => (row.lag ? duration(row.lag.behind) : "unknown"), "right"],
      ["Told by", ([, row]) => row.lag?.source ?? "–", "hide-narrow"],
      ["Asked", ([, row]) => (row.lag ? `${duration(Math.max(0, (store.at - row.lag.at) / 1000))} ago` : "–"), "right"],
    ];
    const table = plainTable("Lag per shard, furthest behind first", columns, shown, "No shard is being read.");
    return rows.length > shown.length ? el("div", {}, table, el("p", { class: "pager" }, `and ${counted(rows.length - shown.length, "shard")} less far behind: see Leases`)) : table;
  }
}

/** The value at a moment, or the one before it that is not long ago. */
function nearest(values, index, xs, x) {
  for (let at = index; at >= 0 && x - xs[at] < 30; at--) {
    if (values[at] === null) return null;
    if (values[at] !== undefined) return values[at];
  }
  return null;
}
