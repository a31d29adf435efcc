// What the server has told: whole once, then only what has changed.

import { UNOWNED } from "/static/marks.js";

export class Store {
  constructor() { this.clear(); }

  clear() {
    Object.assign(this, {
      at: 0, window: 900000, facts: {}, rows: new Map(), owners: new Map(), lag: new Map(), spans: new Map(),
      parents: new Map(), rates: [], events: [], number: 0, lagNumber: 0, rateNumber: 0, eventNumber: 0,
    });
  }

  whole(told) {
    this.clear();
    Object.assign(this, { at: told.at, window: told.window, facts: told.facts, rates: told.rates, events: told.events });
    for (const name of ["rows", "owners", "lag", "spans", "parents"]) {
      for (const [key, value] of Object.entries(told[name] ?? {})) this[name].set(key, value);
    }
    this.bump(["number", "lagNumber", "rateNumber", "eventNumber"]);
  }

  change(told) {
    if (told.at) this.at = told.at;
    if (told.facts) this.facts = told.facts;
    for (const [key, row] of Object.entries(told.rows ?? {})) {
      this.rows.set(key, row);
      if (row.parents?.length) this.parents.set(key, row.parents);
    }
    for (const key of told.gone ?? []) this.rows.delete(key);
    for (const [name, owner] of Object.entries(told.owners ?? {})) this.owners.set(name, owner);
    for (const [key, point] of Object.entries(told.lag ?? {})) this.append(this.lag, key, point);
    for (const [key, span] of Object.entries(told.spans ?? {})) this.append(this.spans, key, span);
    if (told.rate) this.rates.push(told.rate);
    if (told.events) this.events.push(...told.events);
    if (this.events.length > 500) this.events.splice(0, this.events.length - 500);
    this.bump(["number", ...(told.lag ? ["lagNumber"] : []), ...(told.rate ? ["rateNumber"] : []), ...(told.events ? ["eventNumber"] : [])]);
    if (this.number % 30 === 0) this.forget();
  }

  append(map, key, value) {
    if (map.has(key)) map.get(key).push(value);
    else map.set(key, [value]);
  }

  bump(names) { for (const name of names) this[name] += 1; }

  forget() {
    const before = this.at - this.window;
    for (const [key, points] of this.lag) {
      const first = points.findIndex((point) => point[0] >= before);
      if (first === -1) this.lag.delete(key);
      else if (first > 1) points.splice(0, first - 1);
    }
    for (const [key, spans] of this.spans) {
      while (spans.length > 1 && spans[1][0] < before) spans.shift();
      if (spans.at(-1)[2] === "GONE" && spans.at(-1)[0] < before) { this.spans.delete(key); this.parents.delete(key); }
    }
    const first = this.rates.findIndex((rate) => rate[0] >= before);
    if (first > 0) this.rates.splice(0, first);
  }

  owner(name) {
    return name ? this.owners.get(name) ?? { name, colour: -1, shape: -1 } : UNOWNED;
  }

  /** Who had the lease at that moment. A lag is told a moment before the look that shows its owner. */
  ownerAt(key, millis) {
    const spans = this.spans.get(key) ?? [];
    let found = spans[0]?.[1] ?? null;
    for (const span of spans) {
      if (span[0] > millis + 1500) break;
      found = span[1] ?? found;
    }
    return found;
  }

  /** The left edge of the charts: as far back as anything is known, at most the window, at least a minute. */
  get since() {
    let first = this.rates[0]?.[0] ?? this.at;
    for (const spans of this.spans.values()) if (spans.length && spans[0][0] < first) first = spans[0][0];
    return Math.max(this.at - this.window, Math.min(first, this.at - 60000));
  }
}
