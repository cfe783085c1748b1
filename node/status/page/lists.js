// The lists: submissions with their verdicts, wallets, nodes, and what was said.

import { byId, clock, keyed, make, mark, number, say, share, shorten, words } from "./dom.js";

const SUBMISSIONS = 120;
const SAID = 150;

export class Submissions {
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.wanted = "";
    byId("filter").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      this.wanted = button.dataset.show;
      for (const each of byId("filter").children) mark(each, "aria-pressed", String(each === button));
      this.render();
    });
  }

  render() {
    const all = [...this.store.table("submission")].map(([key, row]) => ({ key, ...row }));
    const shown = all
      .filter((row) => !this.wanted || row.outcome === this.wanted)
      .sort((a, b) => b.seen - a.seen)
      .slice(0, SUBMISSIONS);
    const quorum = this.store.facts.quorum ?? 0;
    keyed(byId("submissions"), shown, {
      key: (row) => row.key,
      create: (row) => this.create(row),
      update: (item, row) => this.update(item, row, quorum),
    });
    byId("submissions-empty").hidden = shown.length > 0;
    say(
      byId("submissions-empty"),
      this.wanted && all.length ? `None was ${this.wanted}.` : "No submission has been seen yet.",
    );
    const reasons = [...this.store.table("reason")].sort((a, b) => b[1].count - a[1].count);
    byId("reasons").hidden = !reasons.length;
    say(
      byId("reasons"),
      `Refused for: ${reasons.map(([reason, row]) => `${words(reason)} (${row.count})`).join(", ")}`,
    );
  }

  create(row) {
    const button = make(
      "button",
      { type: "button" },
      make("span", { class: "place-of" }),
      make("span", { class: "who" }, document.createTextNode(""), make("small")),
      make("span", { class: "pips", "aria-hidden": "true" }),
      make("span", { class: "tag" }),
      make("span", { class: "hidden" }),
    );
    button.addEventListener("click", () => this.open("submission", row.key));
    return make("li", {}, button);
  }

  update(item, row, quorum) {
    const [place, who, pips, tag, more] = item.firstChild.children;
    const votes = row.votes ?? [];
    say(place, `step ${row.step}·${row.index}`);
    if (who.firstChild.data !== row.worker) who.firstChild.data = row.worker;
    say(who.lastChild, row.tokens === undefined ? "" : `${number(row.tokens)} tokens`);
    const shown = votes.map((vote) => vote.outcome);
    while (shown.length < quorum) shown.push("none");
    if (pips.dataset.votes !== shown.join()) {
      pips.dataset.votes = shown.join();
      pips.replaceChildren(...shown.map((outcome) => make("i", { "data-vote": outcome })));
    }
    mark(tag, "data-kind", row.outcome);
    say(tag, row.outcome === "refused" ? words(row.reason) : row.outcome);
    say(more, `, ${row.outcome === "refused" ? "refused, " : ""}${votes.length} verdicts`);
  }
}

const whole = (row) => row.final + (row.pending ?? 0);

export function renderWallets(store) {
  const rows = [...store.table("wallet").values()].sort((a, b) => whole(b) - whole(a));
  const most = Math.max(1, ...rows.map(whole));
  const table = byId("wallets");
  byId("contributions").hidden = !rows.length && store.facts.kind === "node";
  table.hidden = !rows.length;
  byId("wallets-empty").hidden = rows.length > 0;
  if (!table.tHead) {
    const head = ["wallet", "share", "on the ledger", "pending"].map((text, place) =>
      make("th", { scope: "col", class: place > 1 ? "num" : place ? "bar-cell" : null }, text),
    );
    table.append(make("thead", {}, make("tr", {}, ...head)), make("tbody"));
  }
  keyed(table.tBodies[0], rows.slice(0, 100), {
    key: (row) => row.wallet,
    create: () =>
      make(
        "tr",
        {},
        make("th", { scope: "row", class: "mono" }),
        make("td", { class: "bar-cell" }, make("div", { class: "bar", "aria-hidden": "true" }, make("i"), make("i"))),
        make("td", { class: "num" }),
        make("td", { class: "num" }),
      ),
    update: (item, row) => {
      const [wallet, bar, final, pending] = item.children;
      say(
        wallet,
        /^0x\w{40}/.test(row.wallet)
          ? row.wallet.replace(/^(0x\w{6})\w+(\w{4})/, "$1…$2")
          : shorten(row.wallet, 14, 12),
      );
      mark(wallet, "title", `${row.wallet}${row.nodes?.length ? `: ${row.nodes.join(", ")}` : ""}`);
      bar.firstChild.children[0].style.width = `${(100 * row.final) / most}%`;
      bar.firstChild.children[1].style.width = `${(100 * (row.pending ?? 0)) / most}%`;
      say(final, number(row.final));
      say(pending, number(row.pending));
    },
  });
}

const ROLES = ["trainer", "worker", "validator", "relay"];

export function renderNodes(store, open) {
  const rows = [...store.table("node").values()].sort(
    (a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
  const table = byId("nodes");
  if (!table.tHead) {
    const head = ["node", "state", "accepted", "refused", "faults", "verdicts", "said last"].map((text, place) =>
      make("th", { scope: "col", class: place > 1 && place < 6 ? "num" : null }, text),
    );
    table.append(make("thead", {}, make("tr", {}, ...head)), make("tbody"));
  }
  say(
    byId("nodes-note"),
    rows.length ? `${rows.filter((row) => row.state === "ready").length} of ${rows.length} ready` : "",
  );
  keyed(table.tBodies[0], rows, {
    key: (row) => row.name,
    create: (row) => {
      const button = make("button", { type: "button", class: "linkish" });
      button.addEventListener("click", () => open("node", row.name));
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, button),
        make("td", {}, make("span", { class: "tag" })),
        make("td", { class: "num" }),
        make("td", { class: "num" }),
        make("td", { class: "num" }),
        make("td", { class: "num" }),
        make("td", { class: "said" }),
      );
    },
    update: (item, row) => {
      const [name, state, accepted, refused, faults, judged, said] = item.children;
      say(name.firstChild, row.name);
      say(state.firstChild, row.state ?? "seen");
      mark(state.firstChild, "data-kind", /^(killed|crashed|struck)/.test(row.state ?? "") ? "trouble" : row.state);
      const isWorker = row.role === "worker";
      const decided = (row.accepted ?? 0) + (row.refused ?? 0);
      say(accepted, isWorker ? `${number(row.accepted ?? 0)} (${share(row.accepted ?? 0, decided)})` : "");
      say(refused, isWorker ? number(row.refused ?? 0) : "");
      say(faults, isWorker ? number(row.faults ?? 0) : "");
      say(judged, row.role === "validator" ? number(row.judged ?? 0) : "");
      say(said, row.said ?? "");
      mark(said, "title", row.said);
    },
  });
}

export function renderLog(store) {
  const rows = [...store.table("log")].slice(-SAID).reverse();
  keyed(byId("log"), rows, {
    key: ([key]) => key,
    create: ([, row]) => {
      const role = store.row("node", row.source)?.role;
      const isLoud = row.level === "warning" || row.level === "error";
      return make(
        "li",
        {},
        make("time", {}, clock(row.ts)),
        make("span", { class: "source", "data-role": role }, row.source),
        make("span", { class: isLoud ? "warning" : null }, isLoud ? `${row.level}: ${row.text}` : row.text),
      );
    },
    update: () => {},
  });
}
