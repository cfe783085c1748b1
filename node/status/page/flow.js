// Messages on their way: points that travel between nodes, and the lines they leave for a while. Drawn only while any is there.

import { colour, fitCanvas } from "./dom.js";

const TRAVEL = 900; // milliseconds
const TRACE = 4000;
const MOST = 120;
const COLOURS = { rollouts: "worker", weights: "relay", verdicts: "validator", ledger: "ledger" };
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Flow {
  constructor(canvas, graph) {
    this.canvas = canvas;
    this.graph = graph;
    this.messages = [];
    this.isDrawing = false;
  }

  /** Show what log rows say was sent. They came in one message: each starts as much later as it happened later. */
  show(rows) {
    if (document.hidden) return;
    const first = Math.min(...rows.map((row) => row.ts));
    const now = performance.now();
    for (const row of rows) {
      this.graph.touch(row.source);
      if (row.flow) this.add(row, now + Math.min(400, (row.ts - first) * 1000));
    }
    if (this.messages.length && !this.isDrawing) {
      this.isDrawing = true;
      requestAnimationFrame(() => this.draw());
    }
  }

  add(row, begin) {
    const [carries, place, inward] = row.flow;
    const all = this.graph.at(place);
    const turn = all.indexOf(row.source);
    const others = all.filter((name) => name !== row.source);
    const copies = Math.min(
      others.length,
      carries === "weights" && !inward ? others.length : (row.fields.relays ?? 1),
      8,
    );
    const start = (turn + Math.floor(row.ts * 10)) % Math.max(1, others.length);
    const isRefusal = carries === "verdicts" && (row.fields.outcome ?? "accept") !== "accept";
    for (let copy = 0; copy < Math.max(0, copies) && this.messages.length < MOST; copy++) {
      const other = others[(start + copy) % others.length];
      const [from, to] = inward ? [other, row.source] : [row.source, other];
      const tint = isRefusal ? "bad" : (COLOURS[carries] ?? "wait");
      this.messages.push({ from, to, tint, begin: begin + copy * 60 });
    }
  }

  draw() {
    const { context } = fitCanvas(this.canvas);
    const now = performance.now();
    const tints = new Map();
    this.messages = this.messages.filter((message) => now - message.begin < TRACE);
    for (const message of this.messages) {
      const from = this.graph.spots.get(message.from);
      const to = this.graph.spots.get(message.to);
      const age = now - message.begin;
      if (!from || !to || age < 0) continue;
      if (!tints.has(message.tint)) tints.set(message.tint, colour(message.tint));
      context.strokeStyle = context.fillStyle = tints.get(message.tint);
      drawOne(context, from, to, age);
    }
    this.isDrawing = this.messages.length > 0;
    if (this.isDrawing) {
      const wait = this.messages.some((message) => now - message.begin < TRAVEL) ? 16 : 120;
      setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
    }
  }
}

function drawOne(context, from, to, age) {
  const bend = (from.x < to.x ? 1 : -1) * Math.min(26, Math.hypot(to.x - from.x, to.y - from.y) / 9);
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 - bend };
  const fade = 1 - age / TRACE;
  context.globalAlpha = 0.34 * fade;
  context.lineWidth = 1.3;
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.quadraticCurveTo(middle.x, middle.y, to.x, to.y);
  context.stroke();
  if (age < TRAVEL && !still.matches) {
    const part = ease(age / TRAVEL);
    const rest = 1 - part;
    context.globalAlpha = 1;
    context.beginPath();
    context.arc(
      rest * rest * from.x + 2 * rest * part * middle.x + part * part * to.x,
      rest * rest * from.y + 2 * rest * part * middle.y + part * part * to.y,
      3.2,
      0,
      7,
    );
    context.fill();
  }
  context.globalAlpha = 1;
}

const ease = (part) => (part < 0.5 ? 2 * part * part : 1 - 2 * (1 - part) * (1 - part));
