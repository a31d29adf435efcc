// Elements. Text goes in as text, never as markup: every name on this page was written by somebody unknown.

const SVG = "http://www.w3.org/2000/svg";

/** el("p", {class: "x"}, "text", child …). Functions become listeners; true and false set and leave out an attribute. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Sets text only where it differs: the browser then has nothing to lay out anew. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let spoken = 0;
/** For those who hear the page: at most one sentence a second. */
export function speak(text) {
  const now = Date.now();
  if (now - spoken < 300) return;
  spoken = now;
  byId("spoken").textContent = text;
}
