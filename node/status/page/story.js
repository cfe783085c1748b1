// The story of one node or one submission, in a dialog at the side. The address remembers which.

import { byId, clock, duration, make, number, say, share, shorten, words } from "./dom.js";

const EVENTS = 40;
const SUBMISSIONS = 12;

export class StoryView {
  constructor(store) {
    this.store = store;
    this.dialog = byId("story");
    this.about = null;
    byId("story-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => {
      this.about = null;
      history.replaceState(null, "", location.pathname);
    });
  }

  open(kind, key) {
    if (key === "ledger" || (kind === "node" && !this.store.row("node", key))) return;
    this.about = { kind, key };
    history.replaceState(null, "", `#${kind}=${encodeURIComponent(key)}`);
    this.shown = "";
    this.render();
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** Open what the address names; whether that is done, or there is nothing to do. */
  openAddress() {
    const [kind, key] = location.hash.slice(1).split("=");
    if (kind !== "node" && kind !== "submission") return true;
    const name = decoded(key);
    if (!this.store.row(kind, name)) return false; // its row may be still to come
    this.open(kind, name);
    return true;
  }

  render() {
    if (!this.about) return;
    const row = this.store.row(this.about.kind, this.about.key);
    if (!row) return;
    const said = this.about.kind === "node" ? this.store.table("log").size : "";
    const state = JSON.stringify(row) + said;
    if (state === this.shown) return; // so that focus and selection stay
    this.shown = state;
    const isNode = this.about.kind === "node";
    say(byId("story-title"), isNode ? row.name : `Step ${row.step}, index ${row.index}`);
    byId("story-body").replaceChildren(...(isNode ? this.node(row) : this.submission(row)));
  }

  node(row) {
    const decided = (row.accepted ?? 0) + (row.refused ?? 0);
    const isWorker = row.role === "worker";
    const log = [...this.store.table("log").values()]
      .filter((each) => each.source === row.name)
      .slice(-EVENTS)
      .reverse();
    const mine = [...this.store.table("submission")]
      .filter(([, each]) => each.worker === row.name)
      .sort(([, a], [, b]) => b.seen - a.seen)
      .slice(0, SUBMISSIONS);
    return [
      facts([
        ["role", row.role],
        ["state", row.state],
        ["up since", row.since ? `${clock(row.since)} (${duration(this.store.now - row.since)})` : null],
        ["node id", row.id],
        [
          "wallet",
          row.wallet ? `${row.wallet}${row.linked ? ", linked" : row.wallet === "none" ? "" : ", claimed only"}` : null,
        ],
        ["checkpoint", row.policy_step],
        ["software", row.version],
        [
          "accepted",
          isWorker
            ? `${number(row.accepted ?? 0)} of ${number(decided)} decided (${share(row.accepted ?? 0, decided)})`
            : null,
        ],
        ["tokens accepted", isWorker ? number(row.tokens ?? 0) : null],
        ["faults", isWorker ? number(row.faults ?? 0) : null],
        ["verdicts signed", row.role === "validator" ? number(row.judged ?? 0) : null],
        ["warnings", row.warnings],
      ]),
      ...(mine.length
        ? [
            make("h3", {}, "Newest submissions"),
            make("ol", { class: "mine" }, ...mine.map(([key, each]) => this.line(key, each))),
          ]
        : []),
      make("h3", {}, "What it said"),
      log.length
        ? make(
            "ol",
            { class: "chain" },
            ...log.map((each) =>
              entry(each.text, clock(each.ts), each.level === "info" || each.level === "debug" ? "" : "bad"),
            ),
          )
        : make("p", { class: "empty" }, "This node's own words are not known here; what others signed about it is."),
    ];
  }

  line(key, row) {
    const said = row.outcome === "refused" ? words(row.reason) : row.outcome;
    const button = make(
      "button",
      { type: "button" },
      make("span", {}, `step ${row.step}, index ${row.index}`),
      make("span", { class: "tag", "data-kind": row.outcome }, said),
    );
    button.addEventListener("click", () => this.open("submission", key));
    return make("li", {}, button);
  }

  submission(row) {
    const worker = make("button", { type: "button", class: "linkish" }, row.worker);
    worker.addEventListener("click", () => this.open("node", row.worker));
    const steps = [
      row.made &&
        entry(
          "Sampled",
          `${clock(row.made)} with checkpoint ${row.policy_step}; mean reward ${number(row.reward)}`,
          "good",
        ),
      row.sent
        ? entry("Sent", `${clock(row.sent)}; the rollouts are on ${row.relays ?? "some"} relays`, "good")
        : row.outcome === "waiting" && !row.votes && entry("Not sent yet", "", "open"),
      ...(row.votes ?? []).map((vote) =>
        entry(
          `${vote.by}: ${vote.outcome === "accept" ? "accept" : `${vote.outcome}, ${words(vote.reason)}`}`,
          [clock(vote.at), vote.seconds !== undefined && `checked in ${number(vote.seconds)} s`, vote.detail]
            .filter(Boolean)
            .join("; "),
          vote.outcome === "accept" ? "good" : "bad",
        ),
      ),
      verdict(row, this.store.facts.quorum),
      ...credit(row, this.store),
    ];
    return [
      facts([
        ["worker", worker],
        ["checkpoint", row.policy_step],
        ["tokens", row.tokens === undefined ? null : number(row.tokens)],
        ["digest", row.digest && shorten(row.digest, 16, 8)],
      ]),
      make("ol", { class: "chain" }, ...steps.filter(Boolean)),
    ];
  }
}

function decoded(key) {
  try {
    return decodeURIComponent(key ?? "");
  } catch {
    return ""; // an address somebody mistyped names nothing
  }
}

function verdict(row, quorum) {
  if (row.outcome === "accepted")
    return entry("Accepted", `${clock(row.decided)}${quorum ? `; a quorum of ${quorum} agrees` : ""}`, "good");
  if (row.outcome === "refused")
    return entry(
      `Refused: ${words(row.reason)}`,
      `${row.why ? `${row.why}; ` : ""}${clock(row.decided)}${quorum ? `; a quorum of ${quorum} refuses` : ""}`,
      "bad",
    );
  if (row.outcome === "dropped" || row.outcome === "unjudged")
    return entry(row.outcome === "dropped" ? "Given up" : "No verdict came in time", words(row.reason), "bad");
  return entry(
    "Waiting for verdicts",
    quorum ? `${(row.votes ?? []).length} of the ${quorum} that decide` : "",
    "open",
  );
}

/** Which tally credited it, and what that means for the wallet. */
function credit(row, store) {
  if (row.outcome !== "accepted") return [];
  if (row.epoch === undefined) return [entry("Not in a final tally yet", "its tokens are pending", "open")];
  const owner = store.row("node", row.worker) ?? {};
  const isLinked = owner.linked === true;
  const claim =
    owner.wallet && owner.wallet !== "none"
      ? entry(
          isLinked ? "Claimable" : "Claimable once the wallet signs",
          `by ${owner.wallet}`,
          isLinked ? "good" : "open",
        )
      : entry("Claimable once a wallet is linked", "", "open");
  return [entry(`Credited in tally ${row.epoch}`, `${number(row.tokens)} tokens, final on the ledger`, "good"), claim];
}

function entry(title, text, kind) {
  return make("li", { "data-kind": kind }, make("b", {}, title), ...(text ? [make("p", {}, text)] : []));
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make(
    "dl",
    { class: "facts" },
    ...shown.flatMap(([name, value]) => [
      make("dt", {}, name),
      make("dd", {}, typeof value === "number" ? String(value) : value),
    ]),
  );
}
