// The network by role: one button a node, laid out by CSS. It knows where each is, for whoever draws between them.

import { keyed, make, makeSvg, mark, say } from "./dom.js";

const PLACES = [
  ["worker", "Workers"],
  ["relay", "Relays"],
  ["trainer", "Trainer and ledger"],
  ["validator", "Validators"],
];
const MANY = 22;
const BUSY_SECONDS = 0.7;
const SHAPES = {
  worker: () => makeSvg("circle", { class: "shape", cx: 16, cy: 16, r: 11 }),
  relay: () => makeSvg("rect", { class: "shape", x: 6, y: 6, width: 20, height: 20, rx: 4 }),
  trainer: () => makeSvg("path", { class: "shape", d: "M16 4 26.5 10v12L16 28 5.5 22V10z" }),
  validator: () => makeSvg("path", { class: "shape", d: "M16 3.5 28.5 16 16 28.5 3.5 16z" }),
  ledger: () => makeSvg("path", { class: "shape", d: "M6 7h20v5H6zM6 13.5h20v5H6zM6 20h20v5H6z" }),
};
const TROUBLE = /^(killed|crashed|restarting|struck)/;

export class Graph {
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.lists = new Map();
    this.dots = new Map();
    this.spots = new Map(); // name -> centre, in pixels of the graph
    for (const [role, title] of PLACES) {
      const count = make("b");
      const list = make("ul");
      root.append(make("div", { class: "place", "data-role": role }, make("h3", {}, `${title} `, count), list));
      this.lists.set(role, { list, count });
    }
    root.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.measure()).observe(root);
  }

  render(store) {
    const nodes = [...store.table("node").values()].sort((a, b) =>
      a.name.localeCompare(b.name, "en", { numeric: true }),
    );
    mark(this.root, "data-many", nodes.length > MANY ? "yes" : null);
    for (const [role] of PLACES) {
      const shown = nodes.filter((node) => placeOf(node) === role);
      const { list, count } = this.lists.get(role);
      say(count, shown.length > 1 ? shown.length : "");
      if (!shown.length) shown.push({ name: role, role, state: "unseen" });
      if (role === "trainer")
        shown.push({
          name: "ledger",
          role: "ledger",
          state: "ready",
          said: store.facts.block ? `block ${store.facts.block}` : "",
        });
      keyed(list, shown, {
        key: (node) => node.name,
        create: (node) => this.create(node),
        update: (item, node) => this.update(item, node),
      });
    }
    this.measure();
    if (!this.root.querySelector('.dot[tabindex="0"]')) this.root.querySelector(".dot").tabIndex = 0;
  }

  create(node) {
    const cross = makeSvg("path", { class: "cross", d: "M11 11l10 10M21 11 11 21" });
    const icon = makeSvg(
      "svg",
      { viewBox: "0 0 32 32", "aria-hidden": "true" },
      (SHAPES[node.role] ?? SHAPES.worker)(),
      cross,
    );
    const dot = make(
      "button",
      { type: "button", class: "dot", tabindex: -1 },
      icon,
      make("span", { class: "name" }),
      make("span", { class: "does" }),
      make("span", { class: "hidden" }),
    );
    dot.addEventListener("click", () => this.open("node", node.name));
    this.dots.set(node.name, dot);
    return make("li", {}, dot);
  }

  update(item, node) {
    const dot = item.firstChild;
    mark(dot, "data-role", node.role);
    mark(dot, "data-state", node.state);
    mark(dot, "data-trouble", TROUBLE.test(node.state ?? "") ? "down" : node.faults ? "struck" : null);
    say(dot.children[1], node.name);
    say(dot.children[2], below(node));
    say(dot.children[3], `, ${node.role} ${node.state ?? "seen"}${node.said ? `: ${node.said}` : ""}`);
    mark(dot, "title", node.said);
  }

  /** Light a node up for a moment. */
  touch(name) {
    const dot = this.dots.get(name);
    if (!dot) return;
    dot.classList.add("busy");
    clearTimeout(dot.rest);
    dot.rest = setTimeout(() => dot.classList.remove("busy"), BUSY_SECONDS * 1000);
  }

  measure() {
    const origin = this.root.getBoundingClientRect();
    this.spots.clear();
    for (const [name, dot] of this.dots) {
      if (!dot.isConnected) {
        this.dots.delete(name);
        continue;
      }
      const box = dot.firstChild.getBoundingClientRect();
      this.spots.set(name, { x: box.x + box.width / 2 - origin.x, y: box.y + box.height / 2 - origin.y });
    }
  }

  /** Names of the nodes at a place. */
  at(place) {
    if (place === "ledger") return ["ledger"];
    return [...(this.lists.get(place)?.list.keyed?.keys() ?? [])].filter((name) => name !== "ledger");
  }

  /** One tab stop for the whole graph; arrows go from node to node. */
  move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.classList.contains("dot")) return;
    const all = [...this.root.querySelectorAll(".dot")];
    const next = all[(all.indexOf(event.target) + step + all.length) % all.length];
    for (const dot of all) dot.tabIndex = dot === next ? 0 : -1;
    next.focus();
    event.preventDefault();
  }
}

function placeOf(node) {
  return PLACES.some(([role]) => role === node.role) ? node.role : "worker";
}

/** The second line of a node: what is worth a look about it. */
function below(node) {
  if (node.role === "ledger") return node.said;
  if (node.state === "struck out") return node.state;
  if (node.faults) return node.faults === 1 ? "1 fault" : `${node.faults} faults`;
  return node.state === "ready" ? "" : node.state;
}
