// Reward, entropy and clipped share by step, each in a plot of its own with the same steps below.

import uPlot from "./vendor/uplot.js";
import { byId, colour, fillTable, make, number, say } from "./dom.js";

const CURVES = [
  { title: "Mean reward", tint: "trainer", range: [0, 1], read: (row) => row.reward ?? row.sampled_reward },
  { title: "Entropy, nats a token", tint: "worker", read: (row) => row.entropy },
  { title: "Clipped tokens, %", tint: "relay", read: (row) => clipped(row) },
];

function clipped(row) {
  if (row.clipped_low === undefined) return undefined;
  return 100 * (row.clipped_low + (row.clipped_high ?? 0) + (row.clipped_delta ?? 0));
}

export class Curves {
  constructor(root, store) {
    this.store = store;
    this.curves = CURVES.map((curve) => ({ ...curve, ...frame(root, curve) }));
    new ResizeObserver(() => this.resize()).observe(root);
  }

  render() {
    const steps = [...this.store.table("step").values()].sort((a, b) => a.step - b.step);
    const isTrainer = this.store.facts.kind !== "node" || this.store.facts.role === "trainer";
    byId("learning").hidden =
      !isTrainer && !steps.some((row) => CURVES.some((curve) => Number.isFinite(curve.read(row))));
    for (const curve of this.curves) {
      curve.root.hidden = !isTrainer && !steps.some((row) => Number.isFinite(curve.read(row)));
    }
    for (const curve of this.curves)
      this.draw(
        curve,
        steps.filter((row) => Number.isFinite(curve.read(row))),
      );
    const trained = steps.filter((row) => row.reward !== undefined);
    const own = !trained.length && steps.some((row) => row.sampled_reward !== undefined);
    say(
      byId("curves-note"),
      own ? "reward of the answers sampled here; the rest is known to the trainer" : summary(trained),
    );
    this.fill(steps);
  }

  draw(curve, rows) {
    const isEmpty = rows.length < 1;
    curve.none.hidden = !isEmpty;
    curve.plot.hidden = isEmpty;
    say(curve.newest, isEmpty ? "" : number(curve.read(rows.at(-1))));
    if (isEmpty) return;
    const data = [rows.map((row) => row.step), rows.map((row) => curve.read(row))];
    const said = `${curve.title} by step: ${number(data[1][0])} at step ${data[0][0]}, ${number(data[1].at(-1))} at step ${data[0].at(-1)}`;
    curve.plot.setAttribute("aria-label", said);
    if (curve.chart) curve.chart.setData(data);
    else curve.chart = new uPlot(options(curve), data, curve.plot);
  }

  /** Draw anew in the colours of another theme. */
  recolour() {
    for (const curve of this.curves) {
      curve.chart?.destroy();
      curve.chart = undefined;
    }
    this.render();
  }

  resize() {
    for (const curve of this.curves) curve.chart?.setSize({ width: curve.plot.clientWidth, height: 170 });
  }

  fill(steps) {
    const table = byId("curves-table");
    if (!table.closest("details").open) return;
    const rows = steps
      .filter((row) => row.reward !== undefined || row.sampled_reward !== undefined)
      .reverse()
      .slice(0, 100);
    fillTable(
      table,
      [
        ...["step", "mean reward", "entropy", "clipped %", "KL", "gradient norm", "stale by", "effective sample"],
        ...["idle %", "tokens", "groups used", "groups dropped"],
      ],
      rows.map((row) => [
        String(row.step),
        row.reward ?? row.sampled_reward,
        row.entropy,
        clipped(row),
        row.kl,
        row.grad_norm,
        row.staleness,
        row.effective_sample,
        row.idle_share === undefined ? undefined : 100 * row.idle_share,
        row.tokens,
        row.groups_used,
        row.dropped,
      ]),
    );
  }
}

function frame(root, curve) {
  const newest = make("b");
  const plot = make("div", { class: "plot", role: "img" });
  const none = make("p", { class: "none" }, "No step has been trained yet.");
  const tip = make("p", { class: "tip", "aria-hidden": "true" });
  const own = make("div", { class: "curve" }, make("h3", {}, curve.title, newest), plot, none, tip);
  root.append(own);
  return { root: own, newest, plot, none, tip };
}

function options(curve) {
  const axis = {
    stroke: () => colour("muted"),
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false },
    font: "11px Inter, sans-serif",
  };
  const steps = (chart, splits) => splits.map((value) => (Number.isInteger(value) ? value : ""));
  return {
    width: curve.plot.clientWidth,
    height: 170,
    padding: [10, 8, 0, 0],
    cursor: { sync: { key: "steps" }, y: false, points: { size: 7 } },
    legend: { show: false },
    scales: {
      x: { time: false },
      y: { range: curve.range ? () => curve.range : (chart, low, high) => [Math.min(0, low), high * 1.1 || 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, values: steps, size: 26 },
      { ...axis, size: 46, values: (chart, splits) => splits.map((value) => number(value)) },
    ],
    series: [
      {},
      {
        stroke: () => colour(curve.tint),
        width: 2,
        points: { show: (chart) => chart.data[0].length < 40, size: 4, fill: () => colour(curve.tint) },
        fill: () => `color-mix(in srgb, ${colour(curve.tint)} 10%, transparent)`,
      },
    ],
    hooks: { setCursor: [(chart) => point(chart, curve)] },
  };
}

function point(chart, curve) {
  const place = chart.cursor.idx;
  say(
    curve.tip,
    place === null || place === undefined ? "" : `step ${chart.data[0][place]}: ${number(chart.data[1][place])}`,
  );
}

function summary(rows) {
  if (rows.length < 2) return "";
  return `${number(rows[0].reward)} at step ${rows[0].step}, ${number(rows.at(-1).reward)} at step ${rows.at(-1).step}`;
}
