// The top of the page: which run, how far, five figures, and a word for those who listen.

import { byId, duration, keyed, make, mark, number, say, share, shorten } from "./dom.js";

const SPOKEN_MS = 8000;
let spokenAt = 0;
let spokenStep = 0;

export function renderSummary(store) {
  const facts = store.facts;
  const steps = [...store.table("step").values()].sort((a, b) => a.step - b.step);
  const trained = steps.filter((row) => row.trained);
  const newest = trained.at(-1)?.step ?? 0;
  const open = steps.filter((row) => row.opened || row.samples).at(-1)?.step ?? facts.step ?? 0;
  renderRun(facts);
  const isTrainerKnown = trained.length > 0 || facts.kind === "testnet";
  say(byId("lead-label"), isTrainerKnown ? "Steps trained" : "Step");
  say(byId("lead-step"), isTrainerKnown ? number(newest) : number(open));
  say(byId("lead-of"), facts.steps ? `of ${number(facts.steps)}` : "");
  const part = facts.steps ? (isTrainerKnown ? newest : open) / facts.steps : 0;
  byId("progress").hidden = !facts.steps;
  byId("progress").firstChild.style.transform = `scaleX(${Math.min(1, part)})`;
  mark(byId("progress"), "aria-valuemax", facts.steps ?? 1);
  mark(byId("progress"), "aria-valuenow", isTrainerKnown ? newest : open);
  say(byId("lead-note"), note(facts, open, newest));
  renderFigures(store, trained, steps);
  speak(newest, trained.at(-1));
}

function renderRun(facts) {
  const kind =
    facts.kind === "testnet" ? "testnet" : facts.role ? `${facts.role} ${shorten(facts.node ?? "", 6, 4)}` : "";
  say(
    byId("run"),
    [kind, facts.title, facts.run && `run ${shorten(facts.run, 8, 4)}`].filter(Boolean).join(" · ") || "connecting",
  );
  document.title = facts.kind === "testnet" ? "testnet · intellect-node" : `${facts.role ?? "node"} · intellect-node`;
  const join = byId("join");
  join.hidden = !facts.join_command;
  if (facts.join_command && !join.childElementCount)
    join.append("Add a worker from another terminal: ", make("code", {}, facts.join_command));
}

function note(facts, open, newest) {
  if (facts.ended) return "the run has ended";
  if (facts.phase && facts.phase !== "running") return facts.phase;
  if (!open) return "the nodes are starting; the first rollouts come soon after";
  return open > newest ? `collecting rollouts for step ${open}` : `training step ${open}`;
}

function renderFigures(store, trained, steps) {
  const facts = store.facts;
  const totals = facts.totals ?? {};
  const own = facts.kind === "node" && facts.role === "worker" ? (store.row("node", facts.role) ?? {}) : null;
  const accepted = (own ?? totals).accepted ?? 0;
  const refused = (own ?? totals).refused ?? 0;
  const rewards = steps
    .filter((row) => (row.reward ?? row.sampled_reward) !== undefined)
    .map((row) => row.reward ?? row.sampled_reward);
  const seconds = trained
    .slice(-8)
    .slice(1) // of the same steps as the pace
    .map((row) => row.seconds)
    .filter((value) => value !== undefined);
  const pace = pacing(trained);
  const figures = [
    [
      "Mean reward",
      rewards.length ? rewards.at(-1).toFixed(3) : "–",
      rewards.length > 1 ? `from ${rewards[0].toFixed(3)}` : "",
    ],
    ["Accepted", number(accepted), `${number((own ?? totals).tokens ?? 0)} tokens${own ? " of this node" : ""}`],
    ["Refused", number(refused), refused ? `${share(refused, accepted + refused)} of those decided` : "none so far"],
    [
      "A step takes",
      pace ? `${pace.toFixed(1)} s` : "–",
      seconds.length
        ? `training ${(seconds.reduce((sum, value) => sum + value, 0) / seconds.length).toFixed(1)} s of it`
        : "",
    ],
    [
      "Ledger",
      facts.block ? `block ${number(facts.block)}` : "–",
      facts.epoch !== undefined && facts.epoch !== null ? `tally ${facts.epoch} final` : "no tally final yet",
    ],
  ];
  keyed(byId("figures"), figures, {
    key: ([name]) => name,
    create: ([name]) => make("div", {}, make("dt", {}, name), make("dd"), make("dd", { class: "sub" })),
    update: (item, [, value, sub]) => {
      say(item.children[1], value);
      say(item.children[2], sub);
    },
  });
}

/** Mean seconds between the last few steps. */
function pacing(trained) {
  const recent = trained.slice(-8);
  return recent.length > 1 ? (recent.at(-1).trained - recent[0].trained) / (recent.length - 1) : 0;
}

/** Tell a screen reader about progress, now and then. */
function speak(step, row) {
  if (step <= spokenStep || performance.now() - spokenAt < SPOKEN_MS) return;
  spokenStep = step;
  spokenAt = performance.now();
  say(byId("spoken"), `Step ${step} trained, mean reward ${number(row.reward)}`);
}

export function renderLink(store, state, since) {
  const pill = byId("link");
  const ended = state === "ended" || store.facts.ended;
  mark(pill, "data-state", state === "lost" ? "lost" : ended ? "ended" : "live");
  say(pill, state === "lost" ? "no connection" : ended ? "ended" : "live");
  const notice = byId("notice");
  notice.hidden = state === "live";
  mark(notice, "data-kind", state === "ended" ? "end" : "lost");
  say(
    notice,
    state === "ended"
      ? "The node has left. This is what it knew last."
      : `No connection to the node for ${duration((Date.now() - since) / 1000)}; trying again.`,
  );
}
