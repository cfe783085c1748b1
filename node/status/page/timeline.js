// What happened at the same time: a lane for each stage, a bar for each piece of work, over the last minute.

import { byId, bytes, clock, colour, fillTable, fitCanvas, mark, say } from "./dom.js";

const LANES = [
  ["generate", "worker"],
  ["verify", "validator"],
  ["broadcast", "relay"],
  ["train", "trainer"],
];
const WINDOW = 45; // seconds
const LEFT = 82;
const BOTTOM = 22;
const GAP = 8;
const SOURCES = 10; // lines of a lane; more share them

export class Timeline {
  constructor(canvas, store) {
    this.canvas = canvas;
    this.store = store;
    this.spans = [];
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** The rows have changed. */
  render() {
    this.spans = [...this.store.table("span").values()].sort((a, b) => a.begun - b.begun);
    this.describe();
    this.fill();
  }

  get end() {
    const last = this.spans.reduce((latest, span) => Math.max(latest, span.ended), 0);
    const quiet = this.store.now - last > WINDOW / 2;
    return last && (quiet || this.store.facts.ended) ? last + 1 : this.store.now;
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas);
    if (width < 100) return;
    const end = this.end;
    const begin = end - WINDOW;
    const place = (at) => LEFT + ((at - begin) / WINDOW) * (width - LEFT);
    const lane = (height - BOTTOM) / LANES.length;
    this.drawSteps(context, { begin, end, place, height });
    LANES.forEach(([stage, tint], index) => {
      const top = index * lane;
      context.fillStyle = colour("text");
      context.font = "500 12px Inter, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.fillText(stage, 0, top + lane / 2);
      context.fillStyle = colour("soft");
      context.beginPath();
      context.roundRect(LEFT, top + GAP / 2, width - LEFT, lane - GAP, 5);
      context.fill();
      const spans = this.spans.filter((span) => span.stage === stage && span.ended > begin && span.begun < end);
      drawSpans(context, spans, { place, top: top + GAP / 2, size: lane - GAP, tint: colour(tint) });
    });
    this.drawClock(context, { begin, end, place, height });
  }

  /** A line where each step opened: workers go over to it while the trainer still trains the one before. */
  drawSteps(context, { begin, end, place, height }) {
    context.font = "500 11px Inter, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    let free = 0;
    for (const row of this.store.table("step").values()) {
      if (!(row.opened > begin && row.opened < end)) continue;
      const x = place(row.opened);
      context.fillStyle = colour("line");
      context.fillRect(x, 0, 1, height - 6);
      const text = `step ${row.step}`;
      if (x < free || x + context.measureText(text).width + 4 > place(end)) continue;
      context.fillStyle = colour("muted");
      context.fillText(text, x + 4, height - 5);
      free = x + context.measureText(text).width + 70;
    }
  }

  drawClock(context, { end, height }) {
    context.fillStyle = colour("muted");
    context.font = "400 11px Inter, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText(clock(end), 0, height - 5);
  }

  describe() {
    const overlap = overlapShare(this.spans.filter((span) => span.ended > this.end - WINDOW));
    const trains = this.spans.some((span) => span.stage === "train");
    const text = !this.spans.length
      ? "nothing has been timed yet"
      : !trains
        ? "what this node does, as it does it"
        : `workers or validators busy during ${overlap} of training`;
    say(byId("overlap"), text);
    mark(
      this.canvas,
      "aria-label",
      `Timeline of generation, verification, broadcast and training over ${WINDOW} seconds; ${text}`,
    );
  }

  fill() {
    const steps = [...this.store.table("step").values()]
      .filter((row) => row.opened || row.trained)
      .sort((a, b) => b.step - a.step);
    const mean = (stage, step) => {
      const found = this.spans
        .filter((span) => span.stage === stage && span.step === step)
        .map((span) => span.ended - span.begun);
      return found.length ? round(found.reduce((sum, value) => sum + value, 0) / found.length) : undefined;
    };
    if (!byId("timeline-table").closest("details").open) return;
    fillTable(
      byId("timeline-table"),
      [
        "step",
        "opened",
        "generate, mean",
        "verify, mean",
        "train",
        "broadcast",
        "on the ledger",
        "checkpoint",
        "fetched by a node",
      ],
      steps
        .slice(0, 30)
        .map((row) => [
          String(row.step),
          clock(row.opened),
          mean("generate", row.step),
          mean("verify", row.step),
          round(row.seconds),
          round(row.broadcast_seconds),
          clock(row.committed),
          bytes(row.bytes),
          bytes(row.fetched),
        ]),
    );
  }
}

const round = (value) => (typeof value === "number" ? Math.round(value * 100) / 100 : undefined);

/** Bars of one lane: a line for each node, or, of many, lines that they share. */
function drawSpans(context, spans, { place, top, size, tint }) {
  const sources = [...new Set(spans.map((span) => span.source))].sort();
  const lines = Math.max(1, Math.min(SOURCES, sources.length));
  const thick = size / lines;
  context.fillStyle = tint;
  for (const span of spans) {
    const x = place(span.begun);
    const y = top + (sources.indexOf(span.source) % lines) * thick;
    context.globalAlpha = span.step % 2 ? 0.95 : 0.55;
    const left = Math.max(LEFT, x);
    const wide = Math.max(1.5, place(span.ended) - left - 1);
    context.beginPath();
    context.roundRect(left, y + 0.5, wide, Math.max(1.5, thick - 1), Math.min(2.5, wide / 2, thick / 4));
    context.fill();
  }
  context.globalAlpha = 1;
}

/** Share of the time in training during which somebody generated or verified. */
function overlapShare(spans) {
  const others = spans
    .filter((span) => span.stage === "generate" || span.stage === "verify")
    .map(({ begun, ended }) => [begun, ended])
    .sort((a, b) => a[0] - b[0]);
  let all = 0;
  let covered = 0;
  for (const { begun, ended } of spans.filter((span) => span.stage === "train")) {
    all += ended - begun;
    let from = begun;
    for (const [start, stop] of others) {
      if (stop <= from || start >= ended) continue;
      covered += Math.max(0, Math.min(stop, ended) - Math.max(start, from));
      from = Math.max(from, Math.min(stop, ended));
    }
  }
  return all ? `${Math.round((100 * covered) / all)}%` : "0%";
}
