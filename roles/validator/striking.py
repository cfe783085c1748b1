"""A validator's part in strikes: a node that a quorum repeatedly finds at fault is ejected, by quorum and with proof.

One validator puts the signed fault verdicts into a blob (`roles.evidence`) and attests the strike. The others check the
blob and attest the same strike; whoever has a quorum of attestations sends it. When the node's wallet disputes the
strike, each validator audits the evidence once more and, if it does not hold, attests that the strike is to be lifted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from dht.encoding import digest, sha256
from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, TransportError
from ledger.errors import LedgerError
from ledger.records import Attestation, HeldStrike, Strike
from roles.context import RunContext
from roles.evidence import EvidenceRefused, check_evidence, held_against, pack_evidence
from roles.messages import StrikeRow, strikes_key
from roles.ports import Ledger
from roles.shardcast.grants import relays_in
from roles.tally import pack_item
from roles.tally.context import Bench
from roles.validator.faults import FaultBook, ProvenFault
from roles.validator.kept_blobs import KeptBlobs
from roles.validator.strike_facts import StrikeFacts
from roles.validator.waits import Waits

log = structlog.get_logger()

STAGGER_MS = 5_000
"""How long each validator waits for the one before it to handle a strike, in an order that
differs from strike to strike."""
RESEND_MS = 30_000
AUDIT_AGAIN_MS, FETCH_AGAIN_MS = 15_000, 10_000
OTHERS_MS = 60_000
"""How long another validator's case delays our own: its evidence may never arrive, perhaps on purpose."""
MOST_CASES = 16
"""Maximum number of a validator's open cases that are examined."""
Reaudit = Callable[[Envelope, int], Awaitable[bool | None]]
"""Audits the submission in a row once more. Returns whether it is at fault, or None when
that cannot be decided (now)."""


@dataclass(frozen=True, slots=True)
class _Case:
    """The content that all validators sign identically."""

    act: str
    strike: Strike


class Striking:
    """The strikes of one run as one validator sees them. `turn` does whatever can be done now and never raises."""

    def __init__(
        self, context: RunContext, *, ledger: Ledger, blobs: KeptBlobs, faults: FaultBook, reaudit: Reaudit
    ) -> None:
        self._spec, self._trusted = context.spec, context.trusted
        self._observer, self._voice = context.observer, context.voice
        self._ledger, self._blobs, self._faults = ledger, blobs, faults
        self._reaudit = reaudit
        self._facts = StrikeFacts(trusted=context.trusted, faults=faults)
        self._attested: defaultdict[_Case, dict[str, Attestation]] = defaultdict(dict)  # by operator
        self._refused: set[_Case] = set()
        self._doubted: set[_Case] = set()  # perhaps attested by us, but by an earlier state of the ledger
        self._judged_by: tuple[Bench, int] | None = None
        self._kept: set[str] = set()
        self._waits = Waits(context.clock)
        self.audited: dict[tuple[str, int], bool] = {}  # whether the evidence of a disputed strike holds

    async def turn(self) -> None:
        """Do one round: record faults, read the others' attestations, strike, lift."""
        try:
            await self._turn()
        except (LedgerError, NodeError, TimeoutError, OSError) as error:
            log.info("strikes.delayed", why=str(error) or type(error).__name__)

    async def _turn(self) -> None:
        self._faults.observe()
        self._facts.strikes, self._facts.stakes = await self._ledger.strikes(), await self._ledger.stakes()
        rows = await self._observer.read_rows([strikes_key(self._trusted.run)])
        for row in rows:
            await self._admit(row)
        self._doubt_what_was_judged_before()
        for case in list(self._attested):
            if case.act == "strike" and (case in self._doubted or self._own_operator() not in self._attested[case]):
                await self._second(case)
        for node, faults in self._facts.due().items():
            await self._propose(node, faults)
        for held in self._facts.strikes:
            if held.outcome == "open" and held.counter_evidence is not None:
                await self._answer_dispute(held)
        for case, attestations in list(self._attested.items()):
            await self._send(case, attestations)
        await self._tidy()

    def _doubt_what_was_judged_before(self) -> None:
        """Reconsider all cases when the validators have changed or a node has a new key: what was proved may no longer
        be, and the reverse."""
        registrations = self._trusted.view.registrations.values() if self._trusted.view else ()
        now = (self._facts.bench(), sum(len(held.previous) for held in registrations))
        if now != self._judged_by:
            self._judged_by = now
            self._refused.clear()
            self._doubted = set(self._attested)

    async def _tidy(self) -> None:
        """Drop the evidence of closed cases."""
        wanted = {case.strike.evidence for case in self._attested}
        wanted |= {held.strike.evidence for held in self._facts.strikes if held.outcome == "open"}
        if wanted != self._kept:
            self._kept = wanted
            await self._blobs.keep_only(wanted)

    # -- attesting -----------------------------------------------------------------------------------------------

    async def _propose(self, node: str, faults: Sequence[ProvenFault]) -> None:
        """Propose a strike of a node, unless this node has attested another validator's case or has
        to wait for others first."""
        number = self._facts.number(node)
        made = [
            case
            for case in self._attested
            if case.act == "strike" and (case.strike.node, case.strike.number) == (node, number)
        ]
        steps = [fault.submission.step for fault in faults]
        sound = [case for case in made if case not in self._refused and self._facts.may_name(case.strike, steps)]
        if any(self._own_operator() in self._attested[case] for case in sound):
            return
        wait = self._rank(node, number) * STAGGER_MS + (OTHERS_MS if sound else 0)
        if self._waits.waited(("propose", node, number)) < wait:
            return
        items = [pack_item(fault.proof) for fault in faults]
        blob = pack_evidence(run=self._trusted.run, node=node, number=number, faults=items)
        holders = await self._blobs.put(blob)
        strike = Strike(
            self._trusted.run, node, self._facts.wallet(node, faults), number, faults[0].reason, sha256(blob)
        )
        log.warning("strike.proposed", node=node, number=number, faults=len(items), evidence=strike.evidence)
        await self._attest(_Case("strike", strike), len(blob), holders)

    async def _second(self, case: _Case) -> None:
        """Attest another validator's proposal if its evidence holds."""
        strike = case.strike
        if case in self._refused or self._is_over(case) or not self._waits.is_time(("fetch", case), FETCH_AGAIN_MS):
            return
        try:
            blob = await self._blobs.get(strike.evidence)
            found = check_evidence(
                blob,
                node=strike.node,
                number=strike.number,
                bench=self._facts.bench(),
                needed=self._spec.checks.strikes_to_eject,
                after_step=self._facts.dealt_with(strike.node),
                keys=self._facts.keys(strike.node),
            )
            if strike.reason not in {verdict.reason for _, verdicts in found for verdict in verdicts.values()}:
                raise EvidenceRefused("the reason given is none of its faults'")
        except EvidenceRefused as error:
            self._refused.add(case)
            self._doubted.discard(case)
            log.warning("strike.refused", node=strike.node, number=strike.number, why=str(error))
            return
        except (TransportError, TimeoutError) as error:  # perhaps only its author has it: other cases continue
            log.info("evidence.unavailable", node=strike.node, why=str(error) or "no answer in time")
            return
        self._doubted.discard(case)
        if self._own_operator() in self._attested[case]:
            return
        if self._facts.may_name(strike, [submission.step for submission, _ in found]):
            await self._attest(case, len(blob), ())

    async def _attest(self, case: _Case, size: int, holders: Sequence[str]) -> None:
        strike = case.strike
        if case.act == "strike":
            attestation = await self._ledger.attest_strike(strike)
        else:
            attestation = await self._ledger.attest_lift(strike.node, strike.number)
        self._attested[case][attestation.operator] = attestation
        row = StrikeRow(
            run=strike.run,
            act="strike" if case.act == "strike" else "lift",
            node=strike.node,
            wallet=strike.wallet or "",
            number=strike.number,
            reason=strike.reason,
            evidence=strike.evidence,
            size=size,
            operator=attestation.operator,
            signature=attestation.signature,
        )
        await self._voice.announce(row, relays=holders)
        log.info(
            f"strike.{'attested' if case.act == 'strike' else 'lift_attested'}", node=strike.node, number=strike.number
        )

    async def _admit(self, envelope: Envelope) -> None:
        """Adopt another validator's attestation, if the row is one."""
        try:
            row = self._trusted.open(envelope)
        except Malformed:
            return
        operators = {item.node: item.operator.lower() for item in self._trusted.judges}
        if not isinstance(row, StrikeRow) or operators.get(envelope.signer) != row.operator.lower():
            return
        strike = Strike(row.run, row.node, row.wallet or None, row.number, row.reason, row.evidence)
        case, attestation = _Case(row.act, strike), Attestation(row.operator, row.signature)
        if (
            row.operator in self._attested.get(case, ())
            or self._is_over(case)
            or row.number > self._facts.number(row.node)
        ):
            return
        theirs = sum(row.operator in held for held in self._attested.values())
        if theirs >= MOST_CASES or self._facts.registration(row.node) is None:
            return
        if await self._holds(case, attestation):
            self._attested[case][row.operator] = attestation
            await self._remember_place(case, relays_in(envelope.hint))

    async def _holds(self, case: _Case, attestation: Attestation) -> bool:
        if case.act == "strike":
            return await self._ledger.check_strike_attestation(case.strike, attestation)
        return await self._ledger.check_lift_attestation(case.strike.node, case.strike.number, attestation)

    async def _remember_place(self, case: _Case, relays: Sequence[str]) -> None:
        """Fetch the evidence now, while its author names the relays that have it."""
        try:
            await self._blobs.get(case.strike.evidence, relays)
        except (NodeError, TimeoutError) as error:
            log.info("evidence.unavailable", node=case.strike.node, why=str(error) or "no answer in time")

    def _own_operator(self) -> str:
        return next((item.operator for item in self._trusted.judges if item.node == self._voice.node), "")

    # -- disputes ------------------------------------------------------------------------------------------------

    async def _answer_dispute(self, held: HeldStrike) -> None:
        """Audit the evidence of a disputed strike once more, and attest a lift if it does not hold."""
        strike = held.strike
        case = _Case("lift", strike)
        if self._own_operator() in self._attested.get(case, ()):
            return
        if (strike.node, strike.number) not in self.audited:
            holds = await self._look_again(held)
            if holds is None:
                return
            self.audited[(strike.node, strike.number)] = holds
            log.info("strike.audited", node=strike.node, number=strike.number, holds=holds)
        if not self.audited[(strike.node, strike.number)]:
            await self._attest(case, 0, ())

    async def _look_again(self, held: HeldStrike) -> bool | None:
        """Whether enough faults hold to justify the strike; None while that cannot be decided."""
        strike, needed = held.strike, self._spec.checks.strikes_to_eject
        if not self._waits.is_time(("audit", strike), AUDIT_AGAIN_MS):
            return None
        blob, judges = await self._blobs.get(strike.evidence), await self._ledger.validators_at(held.block)
        bench = Bench(strike.run, self._spec.buckets, [item.node for item in judges.validators], judges.quorum)
        proved = held_against(blob, bench=bench, keys=self._facts.keys(strike.node))
        answers = [await self._reaudit(row, reason) for row, reason in proved]
        if answers.count(True) >= needed:
            return True
        return False if answers.count(True) + answers.count(None) < needed else None

    # -- sending -------------------------------------------------------------------------------------------------

    def _is_over(self, case: _Case) -> bool:
        """Whether the ledger already has what is attested, or can no longer accept it."""
        strike = case.strike
        if case.act == "strike":
            return strike.number < self._facts.number(strike.node)
        return not any(held.outcome == "open" and held.strike == strike for held in self._facts.strikes)

    async def _send(self, case: _Case, attestations: Mapping[str, Attestation]) -> None:
        strike = case.strike
        if self._is_over(case):
            self._attested.pop(case, None)
            self._doubted.discard(case)
            return
        if case.act == "strike" and (case in self._refused or case in self._doubted):
            return  # signed, also by us, under another validator set: the evidence must hold for the current one
        operators = {item.operator for item in self._trusted.judges}
        valid = [item for name, item in attestations.items() if name in operators]
        waited = self._waits.waited(("send", case))
        if len(valid) < self._trusted.quorum or waited < self._rank(strike.node, strike.number) * STAGGER_MS:
            return
        if not self._waits.is_time(("sent", case), RESEND_MS):
            return
        if case.act == "strike":
            await self._ledger.strike(strike, valid[: self._trusted.quorum])
            log.warning("node.ejected", node=strike.node, number=strike.number, evidence=strike.evidence)
        else:
            await self._ledger.lift(strike.node, strike.number, valid[: self._trusted.quorum])
            log.warning("strike.lifted", node=strike.node, number=strike.number)

    def _rank(self, node: str, number: int) -> int:
        """This validator's place in the order for a strike."""
        names = [item.node for item in self._trusted.judges]
        order = sorted(names, key=lambda name: digest("strike-turn/1", node, number, name))
        return order.index(self._voice.node) if self._voice.node in order else len(order)
