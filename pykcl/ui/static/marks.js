// The colour and the shape of an owner: the same on the whole page, in the terminal and on every machine.

import { svg } from "/static/dom.js";

const PATHS = [
  "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12z",
  "M8 1.6L15 14H1z",
  "M2.6 2.6h10.8v10.8H2.6z",
  "M8 .8L15.2 8L8 15.2L.8 8z",
  "M8 14.4L1 2h14z",
  "M8 .9l2.2 4.7 5.1.6-3.8 3.5 1 5.1L8 12.3l-4.5 2.5 1-5.1L.7 6.2l5.1-.6z",
  "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12zM8 3.6v8.8a4.4 4.4 0 0 0 0-8.8z",
  "M14.4 8L2 1v14z",
];
const NOBODY = "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12zM8 3.8a4.2 4.2 0 1 1 0 8.4a4.2 4.2 0 1 1 0-8.4z";
const drawn = new Map();
let colours = null;

export const UNOWNED = { name: "nobody", colour: -1, shape: -1 };

/** As an element, to stand beside the name. */
export function markOf(owner) {
  const shape = svg("path", { d: PATHS[owner.shape] ?? NOBODY, fill: "currentColor", "fill-rule": "evenodd" });
  return svg("svg", { viewBox: "0 0 16 16", class: `mark o${owner.colour}`, "aria-hidden": "true" }, shape);
}

/** Onto a canvas, in its middle (x, y), with a rim so that it stands out of lines; in its own colour unless told. */
export function drawMark(context, owner, x, y, size, rim, colour = colourOf(owner)) {
  if (!drawn.has(owner.shape)) drawn.set(owner.shape, new Path2D(PATHS[owner.shape] ?? NOBODY));
  context.save();
  context.translate(x - size / 2, y - size / 2);
  context.scale(size / 16, size / 16);
  if (rim !== null) {
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = rim;
    context.stroke(drawn.get(owner.shape));
  }
  context.fillStyle = colour;
  context.fill(drawn.get(owner.shape), "evenodd");
  context.restore();
}

/** For a canvas, which knows no variables of the style sheet. */
export function colourOf(owner) {
  return owner.colour < 0 ? palette().nobody : palette()[`owner-${owner.colour}`];
}

export function palette() {
  if (colours === null) {
    const style = getComputedStyle(document.documentElement);
    const names = ["nobody", "text", "muted", "line", "grid", "surface", "sunk", "bad", "warn", "accent", "sans", "mono"];
    for (let at = 0; at < 7; at++) names.push(`owner-${at}`);
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colours;
}

export function forgetPalette() { colours = null; }

/** A colour mixed with the ground, opaque, so that areas can lie on one another. */
export function tinted(colour, share) {
  const mix = [1, 3, 5].map((at) => {
    const [one, ground] = [colour, palette().surface].map((text) => parseInt(text.slice(at, at + 2), 16));
    return Math.round(one * share + ground * (1 - share));
  });
  return `rgb(${mix.join(" ")})`;
}
