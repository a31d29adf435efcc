// How much each worker does, one on top of the other.

import { byId, el, say } from "/static/dom.js";
import { clock, number } from "/static/format.js";
import { colourOf, drawMark, markOf, palette, tinted } from "/static/marks.js";
import { Plot, Twin, plainTable } from "/static/plot.js";

const MOST_AREAS = 12;
const OTHERS = "\u0000others";

export class RateChart {
  constructor(store) {
    this.store = store;
    this.names = [];
    this.plot = new Plot(byId("panel-rate").querySelector(".body"), "Throughput by worker over time. Arrow keys move through time.", {
      shape: () => this.shape(), tip: (index, y) => this.tip(index, y), ends: (uplot) => this.ends(uplot),
    });
    this.twin = new Twin("panel-rate", "Throughput by worker", () => this.table());
  }

  /** What a number of the chart counts. */
  get unit() { return this.store.facts.rateUnit === "records" ? "records/s" : "checkpoints/min"; }
  get factor() { return this.store.facts.rateUnit === "records" ? 1 : 60; }

  draw() {
    const { store } = this;
    const records = store.facts.rateUnit === "records";
    say(byId("h-rate"), records ? "Throughput by worker" : "Checkpoints by worker");
    say(byId("rate-note"), records ? "records/s" : "moved per minute");
    byId("rate-note").title = store.facts.rateNote ?? "";
    if (this.twin.shows) { this.twin.fill(); return; }
    if (!store.rates.some(([, rates]) => Object.keys(rates).length)) {
      if (store.rows.size === 0) { this.plot.nothing("No workers yet", "Each gets an area of its own as soon as it works."); return; }
      const asks = records ? store.facts.rateNote || "The first numbers come within seconds." : "The first numbers come after ten seconds.";
      this.plot.nothing(records && store.facts.rateNote ? "No worker reports its records" : "Counting", asks);
    } else this.plot.draw(store.since, store.at);
  }

  /** Those with the most come first, so that the rest can be put together. */
  workers() {
    const sums = new Map();
    for (const [, rates] of this.store.rates) for (const [name, rate] of Object.entries(rates)) sums.set(name, (sums.get(name) ?? 0) + rate);
    const names = [...sums.keys()].sort((one, other) => sums.get(other) - sums.get(one) || (one < other ? -1 : 1));
    const alone = names.length > MOST_AREAS ? names.slice(0, MOST_AREAS - 1) : names;
    return { alone: alone.sort(), others: names.slice(alone.length) };
  }

  shape() {
    const { alone, others } = this.workers();
    const { rates } = this.store;
    this.names = others.length ? [...alone, OTHERS] : alone;
    const xs = rates.map(([at]) => at / 1000);
    const sums = new Array(xs.length).fill(0);
    const layers = this.names.map((name) => rates.map(([, told], at) => {
      const known = name === OTHERS ? others.filter((one) => one in told).map((one) => told[one]) : name in told ? [told[name]] : [];
      if (known.length === 0) return null;
      sums[at] += known.reduce((sum, one) => sum + one, 0) * this.factor;
      return sums[at];
    }));
    this.layers = layers;
    const top = Math.max(this.factor === 1 ? 5 : 6, ...sums);
    // The highest is drawn first, and the lower ones over it.
    const order = this.names.map((_, at) => at).reverse();
    const series = order.map((at) => {
      const colour = colourOf(this.owner(this.names[at]));
      return { label: this.names[at], stroke: colour, width: 1.5, fill: tinted(colour, 0.32), points: { show: xs.length < 2, size: 4 }, spanGaps: false };
    });
    return { series, data: [xs, ...order.map((at) => layers[at])], range: [0, top * 1.15], format: (value) => (value === 0 ? "0" : number(value)) };
  }

  owner(name) { return name === OTHERS ? { name: "all others", colour: -1, shape: -1 } : this.store.owner(name); }

  ends(uplot) {
    let below = 0;
    this.names.forEach((name, at) => {
      const last = this.layers[at].at(-1);
      if (last === null || last === undefined) return;
      const x = uplot.valToPos(uplot.data[0].at(-1), "x", true) - 8 * devicePixelRatio;
      const height = Math.abs(uplot.valToPos(last, "y", true) - uplot.valToPos(below, "y", true));
      const y = uplot.valToPos((last + below) / 2, "y", true);
      below = last;
      if (height > 9 * devicePixelRatio && x > uplot.bbox.left) drawMark(uplot.ctx, this.owner(name), x, y, 9 * devicePixelRatio, palette().surface);
    });
  }

  tip(index) {
    const rates = this.store.rates[index];
    if (rates === undefined) return null;
    const told = Object.entries(rates[1]).sort((one, other) => other[1] - one[1]);
    const lines = told.slice(0, 8).map(([name, rate]) => el("p", {}, markOf(this.owner(name)), ` ${this.owner(name).name}  `, el("b", {}, number(rate * this.factor))));
    const sum = told.reduce((all, [, rate]) => all + rate, 0) * this.factor;
    return [el("p", { class: "muted" }, `${clock(rates[0])} · ${number(sum)} ${this.unit}`), ...lines];
  }

  /** Of the latest point: in all, or null where nobody tells. */
  latest() {
    const rates = this.store.rates.at(-1)?.[1];
    const told = rates ? Object.values(rates) : [];
    return told.length ? told.reduce((sum, one) => sum + one, 0) * this.factor : null;
  }

  table() {
    const { store } = this;
    const latest = store.rates.at(-1)?.[1] ?? {};
    const { alone, others } = this.workers();
    const minute = store.rates.filter(([at]) => at > store.at - 60000);
    const mean = (name) => {
      const told = minute.map(([, rates]) => rates[name]).filter((rate) => rate !== undefined);
      return told.length ? number((told.reduce((sum, one) => sum + one, 0) / told.length) * this.factor) : "unknown";
    };
    const columns = [
      ["Worker", (name) => el("span", { class: "owner" }, markOf(store.owner(name)), el("span", { class: "name" }, store.owner(name).name))],
      [`${this.unit} now`, (name) => (name in latest ? number(latest[name] * this.factor) : "unknown"), "right"],
      ["1 min mean", mean, "right"],
      ["Leases", (name) => String(store.owner(name).leases ?? 0), "right hide-narrow"],
    ];
    return plainTable("Throughput by worker", columns, [...alone, ...others], store.facts.rateNote || "Nobody was counted yet.");
  }
}
