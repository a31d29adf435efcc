// What the two charts share: axes, the cursor by mouse and by keys, a tip beside it, marks at the ends of lines.

import { byId, el, say, speak } from "/static/dom.js";
import { clock } from "/static/format.js";
import { palette } from "/static/marks.js";

export class Plot {
  /**
   * shape(): {series, data, bands?, range, format} or null, where there is nothing to see.
   * tip(index, y): elements to show for that moment, or null. ends(uplot): draws over the lines.
   */
  constructor(body, label, { shape, tip, ends }) {
    this.shape = shape;
    this.tipFor = tip;
    this.ends = ends;
    this.uplot = null;
    this.key = "";
    this.host = el("div", { class: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": label, keydown: (event) => this.onKey(event) });
    this.tip = el("div", { class: "tip", hidden: true });
    this.empty = el("div", { class: "empty-state", hidden: true });
    body.append(this.host, this.empty, this.tip);
    this.body = body;
    new ResizeObserver(() => this.fit()).observe(body);
  }

  fit() {
    if (this.uplot && this.body.clientWidth) this.uplot.setSize(this.size());
  }

  size() { return { width: this.body.clientWidth, height: this.body.clientHeight }; }

  nothing(title, text) {
    this.drop();
    this.host.hidden = true;
    this.empty.hidden = false;
    if (this.empty.dataset.said !== title + text) {
      this.empty.replaceChildren(el("strong", {}, title), el("span", {}, text));
      this.empty.dataset.said = title + text;
    }
  }

  drop() {
    this.uplot?.destroy();
    this.uplot = null;
    this.key = "";
    this.tip.hidden = true;
  }

  draw(since, now) {
    if (!this.body.clientWidth) return;
    const found = this.shape();
    if (found === null) return;
    this.empty.hidden = true;
    this.host.hidden = false;
    this.format = found.format;
    this.range = found.range;
    const key = JSON.stringify(found.series.map((one) => [one.stroke, one.fill, one.label]));
    if (this.uplot === null || key !== this.key) {
      this.drop();
      this.key = key;
      this.uplot = new uPlot(this.options(found), found.data, this.host);
    } else {
      this.uplot.setData(found.data, false);
    }
    this.uplot.batch(() => {
      this.uplot.setScale("x", { min: since / 1000, max: now / 1000 });
      this.uplot.setScale("y", { min: this.range[0], max: this.range[1] });
    });
  }

  options(found) {
    const font = `11px ${palette().sans}`;
    const axis = { stroke: () => palette().muted, font, ticks: { show: false }, grid: { stroke: () => palette().grid, width: 1 } };
    return {
      ...this.size(), padding: [10, 14, 0, 4], legend: { show: false }, pxAlign: 0,
      cursor: { points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: true, auto: false }, y: { auto: false } },
      axes: [
        { ...axis, size: 26, space: 76, values: (_, splits, __, ___, step) => splits.map((at) => clock(at * 1000, step < 60)) },
        { ...axis, size: 46, space: 34, values: (_, splits) => splits.map((value) => this.format(value)) },
      ],
      series: [{}, ...found.series],
      ...(found.bands ? { bands: found.bands } : {}),
      hooks: { draw: [(uplot) => this.ends(uplot)], setCursor: [(uplot) => this.onCursor(uplot)] },
    };
  }

  onCursor(uplot) {
    const { left, top, idx } = uplot.cursor;
    const inside = idx !== null && idx !== undefined && left >= 0;
    const told = inside ? this.tipFor(idx, uplot.posToVal(top, "y")) : null;
    this.tip.hidden = told === null;
    if (told === null) return;
    this.tip.replaceChildren(...told);
    const room = this.body.clientWidth - this.tip.offsetWidth - 8;
    const x = uplot.over.offsetLeft + left + 14;
    this.tip.style.left = `${Math.max(4, x > room ? x - 28 - this.tip.offsetWidth : x)}px`;
    this.tip.style.top = `${Math.max(2, Math.min(top, this.body.clientHeight - this.tip.offsetHeight - 4))}px`;
    if (document.activeElement === this.host) speak([...this.tip.children].map((line) => line.textContent.trim()).join(", "));
  }

  onKey(event) {
    const uplot = this.uplot;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (uplot === null || (!(event.key in steps) && event.key !== "Escape" && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const xs = uplot.data[0];
    if (event.key === "Escape") { uplot.setCursor({ left: -10, top: -10 }); return; }
    const at = { Home: xs.findIndex((x) => x >= uplot.scales.x.min), End: xs.length - 1 }[event.key]
      ?? Math.max(0, Math.min(xs.length - 1, (uplot.cursor.idx ?? xs.length) + steps[event.key]));
    uplot.setCursor({ left: uplot.valToPos(xs[at], "x"), top: uplot.cursor.top > 0 ? uplot.cursor.top : 8 });
  }
}

/** The buttons Chart and Table of a panel; table() makes the twin anew each time it is shown or the data change. */
export class Twin {
  constructor(panel, name, table) {
    this.panel = byId(panel);
    this.table = table;
    this.shows = false;
    this.body = this.panel.querySelector(".body");
    this.sheet = el("div", { class: "scroll lines", hidden: true, tabindex: "0", role: "region", "aria-label": `${name}, as a table` });
    this.body.append(this.sheet);
    this.buttons = ["Chart", "Table"].map((text, at) => el("button", { type: "button", "aria-pressed": String(at === 0), click: () => this.show(at === 1) }, text));
    const group = this.panel.querySelector(".twin");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `${name}: as a chart or as a table`);
    group.append(...this.buttons);
  }

  show(asTable) {
    this.shows = asTable;
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", String((at === 1) === asTable)));
    for (const child of this.body.children) {
      if (child === this.sheet) child.hidden = !asTable;
      else child.classList.toggle("unseen", asTable);
    }
    this.fill();
  }

  fill() {
    if (!this.shows) return;
    const top = this.sheet.scrollTop;
    this.sheet.replaceChildren(this.table());
    this.sheet.scrollTop = top;
  }
}

/** A plain table. columns: [heading, cell(row), more classes]. Cells are texts or elements. */
export function plainTable(caption, columns, rows, nothing) {
  if (rows.length === 0) return el("div", { class: "empty-state" }, el("span", {}, nothing));
  const head = el("tr", {}, ...columns.map(([name, , kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row)))));
  return el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, ...body));
}

export { say };
