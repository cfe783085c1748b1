"""Turns an event into one short sentence for people, in place of its name and fields. Pure.

Events keep their names in the event file, and warnings keep them on the terminal too, so that they can be looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.terminal import format_bytes

QUIET = (
    "directory.state_changed",
    "ledger.trusted",
    "manifest.accepted",
    "manifest.missed",
    "row.unconfirmed",
    "verdict.delayed",
)
"""Events that say little about what a node is doing now."""
PHRASES: Mapping[str, str] = {
    "archive.delayed": "the archive is not complete yet: {why}",
    "archive.fetched": "{blobs} blobs archived, {missing} not found yet",
    "archive.lost": "no relay has blob {blob} any more: it cannot be archived",
    "behaviour.missing": "step {step}: the policies of {completions} completions are gone; the current one is used instead",
    "batch.closed": "step {step}: batch complete, mean reward {reward}; {groups} groups teach something, {dropped} dropped",
    "blob.unsent": "step {step}: rollouts not uploaded yet: {why}",
    "boards.relied_on": "the DHT does not work, the relays' boards are used meanwhile: {why}",
    "boards.spared": "the DHT works again",
    "clipping.grown": "step {step}: clipping stops {value} of all tokens, up from {usual} at first",
    "checkpoint.arriving": "checkpoint {step}: {received} of {total} bytes received, {seconds_left} s to go",
    "checkpoint.committed": "checkpoint {step} is committed on the ledger",
    "checkpoint.copied": "checkpoint {step} is on {relays} relays",
    "checkpoint.loaded": "checkpoint in use: {manifest}",
    "checkpoint.pulled": "checkpoint {step} completed from another relay",
    "checkpoint.published": "checkpoint {step} is on the relays",
    "checkpoint.rebuilt": "checkpoint {step} rebuilt from a delta of {delta} bytes",
    "checkpoint.uncommitted": "checkpoint {step} is not committed yet: {why}",
    "checkpoint.unsent": "checkpoint {step} is not on the relays yet: {why}",
    "delta.failed": "checkpoint {step} is sent whole: {why}",
    "delta.made": "checkpoint {step} as a delta: {delta} bytes instead of {full}",
    "delta.refused": "a delta of trainer {trainer} is refused: {reason}",
    "delta.skipped": "checkpoint {step} is sent whole: too much has changed for a delta",
    "delta.unsent": "a relay does not accept the delta: {reason}",
    "delta.unused": "the delta is not used, shards are fetched instead: {reason}",
    "directory.answered": "peers answer again",
    "directory.hidden": "peers cannot dial this node ({verdict}), so it keeps no rows for others: open its port, see doctor",
    "directory.reachable": "peers can dial this node from outside",
    "directory.split": "{unmet} of {known} nodes of the run are missing on the DHT: dialling them",
    "directory.unreachable": "the DHT cannot be read: {why}",
    "directory.whole": "all {known} known nodes are on the DHT",
    "disk.full": "the disk is full ({free} bytes free): the {role} waits for room, then continues where it was",
    "disk.over_budget": "{used} bytes are in use, max_disk is {budget}; most are in {largest}: raise max_disk or make room",
    "entropy.rebounded": "step {step}: entropy has risen to {value} nats, from {usual}: training may be about to collapse",
    "events.discarded": "the ledger's events kept on disk are discarded and read anew: {cause}",
    "folder.unusable": "this trainer cannot continue from its folder: {why}",
    "history.deviates": "{node}: its submissions together deviate more than an honest node's; refused while they do",
    "history.recovered": "{node}: its submissions no longer deviate more than an honest node's",
    "key.made": "new node key in {file}: keep a copy, it is your node's identity",
    "lease.kept": "the lease stays as it is: {why}",
    "lease.lapsed": "the leading trainer {leader} has let its lease run out; reported on the ledger",
    "lease.renewed": "still leading: lease of term {term} renewed",
    "lease.taken_over": "took over from {leader}: this trainer leads term {term}",
    "lease.unrenewed": "the lease cannot be renewed yet: {why}",
    "ledger.answered": "the ledger answers again",
    "ledger.contradicted": "{rpc} claims block {block}, far ahead of the other ledger end-points: it is not believed",
    "ledger.trusted": "only one ledger end-point ({rpc}): whatever it says is believed",
    "ledger.unreachable": "the ledger does not answer: {why}",
    "loop.lagged": "this node did not respond for {seconds} s: {why}",
    "line.unmeasured": "the line to the relays cannot be measured: {why}",
    "logs.given_up": "old logs removed, since {used} bytes were in use and max_disk is {budget}",
    "machine.measured": "this machine: {hardware}",
    "logprobs.mismatched": "step {step}: equal weights give log-probabilities {value} nats apart; {usual} is already much",
    "manifest.accepted": "checkpoint {step} announced",
    "limit.raised": "step {step}: more is needed, now {limit} submissions from each worker",
    "manifest.damaged": "a checkpoint kept in this folder is unusable and set aside: {reason}",
    "manifest.missed": "{relay} lost a checkpoint and is sent it again: {reason}",
    "manifest.refused": "a relay does not accept the checkpoint: {reason}",
    "node.ready": "ready, {seconds} s after the start",
    "node.started": "intellect-node {version}, run {run}, process {pid}",
    "node.stopped": "left after {seconds} s",
    "optimizer.fresh": "no relay has an earlier trainer's optimizer state: the optimizer starts fresh",
    "p2pd.died": "p2pd, which carries the DHT, has ended (exit code {code}): it is started again",
    "receipt.unsaved": "checkpoint {step}: no receipt for the relays: {why}",
    "registration.pending": "not registered yet: {cause}",
    "relays.changed": "relays known: {relays}",
    "row.unconfirmed": "peers have not confirmed a record of this node yet ({kind}): {cause}",
    "role.ended": "the role is done",
    "run.ended": "the run has ended with step {step}",
    "data_set.not_found_yet": "a data set of the run's tasks is not found yet: {cause}",
    "data_set.fetched": "fetched the data set {digest} ({size} bytes)",
    "run.not_found_yet": "the run is not found yet: {cause}",
    "run.saturated": "step {step}: all groups agree, there is nothing to learn from them (reward {reward})",
    "sequence.unreserved": "the sequence number of this node's rows could not be saved: {why}",
    "state.published": "optimizer state of step {step} is on the relays, encrypted for the other trainers",
    "state.unpublished": "optimizer state of step {step} is not on the relays yet: {why}",
    "state.unusable": "optimizer state of step {step} cannot be used: {why}",
    "step.diverged": "step {step} diverged, the weights stay as they were before it: {why}",
    "step.opened": "step {step} is open; newest checkpoint {policy_step}",
    "step.trained": "step {step} trained, mean reward {reward}",
    "step.unfit": "step {step}: this model cannot have made its groups, the weights stay as they were: {why}",
    "stacks.written": "the stacks of all threads of this node are in {file}",
    "strikes.delayed": "strikes cannot be looked at yet: {why}",
    "strike.audited": "the disputed strike of {node} was audited again; its evidence holds: {holds}",
    "strike.lifted": "the strike of {node} is lifted: its evidence did not hold",
    "strike.proposed": "{node} is to be struck: {faults} submissions at fault",
    "strike.refused": "this validator does not sign a strike of {node}: {why}",
    "node.ejected": "{node} is struck out of the run",
    "submission.accepted": "step {step}, index {index}: ACCEPTED, {tokens} tokens",
    "submission.dropped": "step {step}, index {index}: given up: {why}",
    "submission.made": "step {step}, index {index}: sampled {tokens} tokens with checkpoint {policy_step}, reward {reward}",
    "submission.sent": "step {step}, index {index}: sent, on {relays} relays",
    "submission.unjudged": "step {step}, index {index}: no verdict came in time",
    "tally.attested": "epoch {epoch}: tally attested",
    "tally.proposed": "epoch {epoch}: tally proposed",
    "tally.delayed": "epoch {epoch}: no tally yet: {why}",
    "upgrade.heard": "the run's owner asks for intellect-node {software} (messages {messages}) from step {step} on",
    "upgrade.needed": "{why}",
    "upgrade.unsaved": "what the run's owner asks for could not be kept: {why}",
    "term.assumed": "no word from the ledger for {seconds} s: continuing with term {term}; another trainer may lead by now",
    "trainer.fenced": "this trainer no longer leads: {why}",
    "trainer.rebuilt": "folder rebuilt from the ledger and the relays: checkpoint {step}, optimizer {optimizer}",
    "trainer.resumed": "continuing after checkpoint {checkpoint}, in term {term}",
    "trainer.standing_by": "standing by: {leader} leads term {term}",
    "trainer.waiting": "waiting: {why}",
    "transaction.dropped": "an earlier transaction came to nothing: {reason}",
    "transaction.refused": "an end-point does not accept the transaction yet: {reason}",
    "transaction.replaced": "a transaction is signed again: {cause}",
    "transaction.resumed": "an earlier transaction, still under way, is seen through",
    "transaction.unseen": "an end-point cannot say yet what became of a transaction: {cause}",
    "weights.not_ahead": "the next checkpoint could not be fetched ahead of its commit: {why}",
    "weights.fetched": "checkpoint {policy_step} is committed, and complete on this disk",
    "weights.loaded": "checkpoint {policy_step} in use",
    "weights.refused": "checkpoint {policy_step} refused: {why}",
    "weights.unreachable": "checkpoint {policy_step} cannot be fetched yet: {why}",
    "worker.ended": "worker done",
    "worker.resumed": "continuing with {submissions} earlier submissions, the newest of step {newest_step}",
    "worker.waiting": "waiting: {why}",
}


def phrase_of(event: Mapping[str, Any]) -> str | None:
    """The sentence for an event; None when it has none, or lacks a field that the sentence needs."""
    fields = {name: _short(value) for name, value in event.items()}
    if "cause" in fields:
        fields.setdefault("why", fields["cause"])
    match event["event"]:
        case "node.registered":
            return _registered(event)
        case "directory.state_changed":
            return _directory(event)
        case "checkpoint.fetched":
            return _fetched(event)
        case "tally.finalised":
            return _finalised(event)
        case "blob.refused":
            if "relay" in event:
                return f"relay {fields['relay']} does not accept a blob: {fields.get('reason')}"
            return f"step {event.get('step')}, index {event.get('index')}: rollouts refused: {fields.get('why')}"
        case "submission.refused":
            return f"step {event.get('step')}, index {event.get('index')}: REFUSED, {event.get('reason')}"
        case "verdict.signed":
            is_accept = event.get("outcome") == "accept"
            said = "accept" if is_accept else f"{event.get('outcome')}, {event.get('reason')}"
            return f"step {event.get('step')}, index {event.get('index')} of {_short(event.get('node'))}: {said}"
    try:
        return PHRASES[event["event"]].format_map(fields)
    except KeyError:
        return None


def _fetched(event: Mapping[str, Any]) -> str | None:
    try:
        whole, delta = format_bytes(int(event["full"])), int(event["delta"])
        way = f"{whole} whole and {format_bytes(delta)} of deltas" if delta and event["full"] else whole
        way = f"{format_bytes(delta)} of deltas" if delta and not event["full"] else way
        return f"checkpoint {event['step']} is here: {way} in {event['seconds']:.1f} s"
    except (KeyError, TypeError, ValueError):
        return None


def _finalised(event: Mapping[str, Any]) -> str:
    said, amount = f"epoch {event.get('epoch')}: a tally is final on the ledger", event.get("amount")
    return f"{said}; {amount} base units are promised so far" if amount else said


def _registered(event: Mapping[str, Any]) -> str:
    wallet = event.get("wallet")
    if wallet in (None, "none"):
        return "registered without a wallet: nobody is credited but the node"
    if event.get("linked"):
        return f"registered, linked to the wallet {wallet}"
    return f"registered; credited to {wallet} once its owner signs"


def _directory(event: Mapping[str, Any]) -> str:
    match event.get("state"):
        case "waiting for seeds":
            dialled = event.get("dialled")
            return f"waiting for seeds: {f'none of {dialled} has answered yet' if dialled else 'none is known'}"
        case "online":
            return "connected to the DHT"
        case "stopped":
            return "disconnected from the DHT"
    return f"DHT: {event.get('state')}"


def _short(value: Any) -> str:
    """Numbers with few digits, long ids shortened."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    if len(text) >= 40 and " " not in text and "/" not in text and not text.startswith("0x"):
        return f"{text[:6]}..{text[-4:]}"
    return text if len(text) <= 160 else text[:157] + "..."
