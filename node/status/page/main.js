// Puts the page together: rows come in, the parts that show them are drawn once a frame at most.

import { byId } from "./dom.js";
import { Curves } from "./curves.js";
import { Flow } from "./flow.js";
import { Graph } from "./graph.js";
import { renderLog, renderNodes, renderWallets, Submissions } from "./lists.js";
import { Store, follow } from "./store.js";
import { StoryView } from "./story.js";
import { renderLink, renderSummary } from "./summary.js";
import { setUpTheme } from "./theme.js";
import { Timeline } from "./timeline.js";

const MOVING_MS = 250; // the timeline's clock
const NEWS_SECONDS = 10; // what is older is not shown as on its way

const store = new Store();
const story = new StoryView(store);
const open = (kind, key) => story.open(kind, key);
const graph = new Graph(byId("graph"), open);
const flow = new Flow(byId("flow"), graph);
const submissions = new Submissions(store, open);
const timeline = new Timeline(byId("timeline"), store);
const curves = new Curves(byId("curves"), store);

const PARTS = [
  [["facts", "node", "step", "submission"], () => renderSummary(store)],
  [["node", "facts"], () => graph.render(store)],
  [["submission", "reason", "facts"], () => submissions.render()],
  [["span", "step"], () => timeline.render()],
  [["step", "facts"], () => curves.render()],
  [["wallet", "facts"], () => renderWallets(store)],
  [["node"], () => renderNodes(store, open)],
  [["log"], () => renderLog(store)],
  [["node", "submission", "log"], () => story.render()],
];

let dirty = new Set(["facts", "node", "step", "submission", "span", "wallet", "log"]);
let isPlanned = false;
let isFirst = true;
let isAddressOpen = false;
let state = "waiting";
let since = Date.now();

function plan() {
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(draw);
}

function draw() {
  isPlanned = false;
  const changed = dirty;
  dirty = new Set();
  for (const [tables, render] of PARTS) {
    if (tables.some((name) => changed.has(name))) render();
  }
}

function take(message) {
  const isReplay = isFirst || message.reset || message.rows.length > 300;
  for (const name of store.apply(message)) dirty.add(name);
  plan();
  isFirst &&= !message.rows.length;
  isAddressOpen ||= story.openAddress();
  if (isReplay) return;
  const news = message.rows.filter(([table, , row]) => table === "log" && row.ts > store.now - NEWS_SECONDS);
  if (news.length) flow.show(news.map(([, , row]) => row));
}

function tell(now) {
  if (now === "lost" && state === "ended") return; // it said goodbye; it may be started again
  if (now !== state) since = Date.now();
  state = now;
  renderLink(store, state, since);
}

setUpTheme(byId("theme"), () => {
  curves.recolour();
  timeline.draw();
});
for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => {
    dirty.add("step");
    plan();
  });
}
setInterval(() => {
  if (document.hidden) return;
  timeline.draw();
  if (state === "lost") renderLink(store, state, since);
}, MOVING_MS);
plan();
follow("/live", { take, tell });
