// Begins, listens and draws: at most once for each frame of the screen, and nothing while nobody looks.

import { LagChart } from "/static/chart_lag.js";
import { RateChart } from "/static/chart_rate.js";
import { Detail } from "/static/detail.js";
import { byId, el, say } from "/static/dom.js";
import { Events } from "/static/events.js";
import { FleetPanel } from "/static/fleet.js";
import { duration } from "/static/format.js";
import { LeaseTable } from "/static/leases.js";
import { Lineage } from "/static/lineage.js";
import { forgetPalette } from "/static/marks.js";
import { begin, tokenOfAddress } from "/static/session.js";
import { Store } from "/static/store.js";
import { Tiles } from "/static/tiles.js";

const store = new Store();
const detail = new Detail(store);
const show = (key) => detail.lease(key);
const table = new LeaseTable(store, show);
const rates = new RateChart(store);
const parts = [new Tiles(store, rates, table), new LagChart(store, show), rates, new Lineage(store, show), new Events(store), table, detail, new FleetPanel(store)];
let source = null;
let paused = false;
let waiting = false;
let heard = 0;
let state = "connecting";

// -- drawing ---------------------------------------------------------------------------------------------------

function draw() {
  if (waiting || paused || document.hidden) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const part of parts) part.draw();
    banner(store.facts.problem ? `${store.facts.problem} What is shown is from ${new Date(store.at).toLocaleTimeString()}.` : "");
  });
}

function banner(text) {
  byId("banner").hidden = text === "";
  say(byId("banner"), text);
}

function tellLive() {
  const age = (Date.now() - heard) / 1000;
  const live = byId("live");
  const quiet = age > Math.max(5, (store.facts.every ?? 1) * 4);
  live.className = `live ${state !== "on" || quiet ? "off" : paused ? "" : "on"}`;
  const text = state === "on" ? (quiet ? `silent for ${duration(age)}` : paused ? "paused" : "live") : state;
  say(byId("live-text"), text);
}

// -- listening -------------------------------------------------------------------------------------------------

function listen() {
  source?.close();
  source = new EventSource("/api/events");
  source.addEventListener("whole", (event) => hear(() => store.whole(JSON.parse(event.data))));
  source.addEventListener("change", (event) => hear(() => store.change(JSON.parse(event.data))));
  source.addEventListener("error", async () => {
    state = "connection lost";
    tellLive();
    if (source.readyState !== EventSource.CLOSED) return;
    try {
      const answer = await fetch("/api/state", { method: "HEAD" });
      if (answer.status === 401) { state = "session over"; banner("This session is over. Open the address that was printed where the page was started."); tellLive(); return; }
    } catch { state = "connection lost"; }
    setTimeout(listen, 3000);
  });
}

function hear(take) {
  heard = Date.now();
  state = "on";
  take();
  tellLive();
  draw();
}

// -- keys and buttons ------------------------------------------------------------------------------------------

function pause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  say(byId("pause"), paused ? "Go on" : "Pause");
  tellLive();
  draw();
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themed() {
  say(byId("theme"), isDark() ? "Light" : "Dark");
  forgetPalette();
  rates.plot.drop();
  parts[1].plot.drop();
  draw();
}

function turnTheme() {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("pykcl-theme", chosen); } catch { say(byId("spoken"), "The choice is not kept."); }
  themed();
}

const TWINS = [parts[1], parts[2], parts[3]];
function turnTables() {
  const asTable = !TWINS.every((part) => part.twin.shows);
  for (const part of TWINS) part.twin.show(asTable);
  draw();
}

const focus = (id) => { const place = byId(id).querySelector(".chart:not([hidden]), .lines:not([hidden]), .scroll") ?? byId(id); place.focus(); place.scrollIntoView({ block: "nearest" }); };
const KEYS = [
  ["1 – 5", "to lag, throughput, lineage, events, leases"], ["← →", "in a chart: through time"], ["↑ ↓", "in the lineage: from shard to shard; Enter opens one"],
  ["t", "charts as tables, and back"], ["/", "filter the leases"], ["p", "pause, go on"], ["d", "dark or light"], ["?", "this"], ["Esc", "closes"],
];
const STATES = [
  ["ACTIVE", "owned, and its counter moved within the failover time"], ["STALE", "owned, and unchanged for the failover time: any live worker may take it, or the leader of a KCL 3.x fleet gives it away"],
  ["UNKNOWN", "owned, and not watched for long enough"], ["UNOWNED", "nobody owns it"], ["WAITING", "a parent has not ended"], ["ENDED", "read to its end"],
  ["NO LEASE", "a shard that is still to be read and has no row yet: it waits for the end of its parents"],
];

function help() {
  const close = el("button", { type: "button", click: () => byId("keys").close() }, "Close");
  const rows = (pairs, first) => el("div", { class: "keys" }, ...pairs.flatMap(([name, text]) => [first(name), el("span", {}, text)]));
  byId("keys").replaceChildren(el("div", { class: "head" }, el("h2", { id: "keys-title" }, "Keys and meanings"), close), el("div", { class: "in" },
    rows(KEYS, (name) => el("span", {}, el("kbd", {}, name))), rows(STATES, (name) => el("span", {}, el("span", { class: `state ${name.replace(" ", "-")}` }, name))),
    el("p", { class: "muted" }, "A colour and a shape are an owner's, everywhere: here, in the terminal and on every machine. Only where two names come to the same, who is seen later takes another. In the lineage a hatched bar is stale, a dashed line has no owner, a dotted one waits for its parents, a thin one has ended.")));
  byId("keys").showModal();
}

const ACTIONS = {
  1: () => focus("panel-lag"), 2: () => focus("panel-rate"), 3: () => focus("panel-lineage"), 4: () => focus("panel-events"), 5: () => focus("leases"),
  t: turnTables, p: pause, d: turnTheme, "?": help, "/": () => byId("filter").focus(),
};

// A dialog that was closed keeps the focus until the next frame is drawn, which a slow machine takes its time for: a
// key in between is meant for the page.
function isTyped(event) {
  return event.target.closest?.("dialog:not([open])") ? false : Boolean(event.target.closest?.("input, select, dialog"));
}

document.addEventListener("keydown", (event) => {
  const typing = isTyped(event);
  if (typing && event.key === "Escape" && event.target.id === "filter") { event.target.value = ""; event.target.dispatchEvent(new Event("input")); event.target.blur(); }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in ACTIONS)) return;
  event.preventDefault();
  ACTIONS[event.key]();
});
byId("pause").addEventListener("click", pause);
byId("theme").addEventListener("click", turnTheme);
byId("help").addEventListener("click", help);
document.addEventListener("visibilitychange", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
for (const part of TWINS) part.twin.buttons.forEach((button) => button.addEventListener("click", draw));

themed();
setInterval(tellLive, 1000);
const token = tokenOfAddress();
if (token !== null) await begin(token);
listen();
