"""Makes the missing observations: a class's engine generates, the validator's observes, the store keeps the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.attacks.bench import Assigned, Bench
from benchmarks.attacks.classes import PREFILLED, Attack, other_seeds
from benchmarks.attacks.store import Record, Store
from dht.errors import NodeError
from roles.inference.engine import Completion, Engine, Request
from roles.toploc.observing import Proven, observe
from roles.toploc.proof import build_proofs
from roles.toploc.verify import verify_proofs

BATCH_GROUPS = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups of one class that are made together."""

    attack: Attack
    numbers: tuple[int, ...]


class Collector:
    """Works through the classes in turn, one batch of each, so that limited time is spread over all of them."""

    def __init__(
        self, bench: Bench, store: Store, *, deadline: float | None = None, at_once: int = BATCH_GROUPS
    ) -> None:
        """`at_once` is the number of an attack's groups generated together; honest classes set their own."""
        self._bench, self._store, self._deadline, self._at_once = bench, store, deadline, at_once
        self._engine: tuple[str, Engine] | None = None

    def collect(self, attacks: Sequence[Attack], *, share: float = 1.0) -> bool:
        """Make what is missing of this share of every class's groups. Returns whether nothing is missing any more. A
        class that fails is reported and skipped, so that the hours spent on the others are not lost."""
        began, made = time.monotonic(), 0
        missing = list(self._missing(attacks, share))
        groups = sum(len(batch.numbers) for batch in missing)
        failed: set[str] = set()
        for batch in missing:
            if self._deadline is not None and time.monotonic() > self._deadline:
                return False
            if batch.attack.name in failed:
                continue
            try:
                self._store.add(self._make(batch))
            except (NodeError, RuntimeError, ValueError, OSError) as error:
                failed.add(batch.attack.name)
                sys.stderr.write(f"{batch.attack.name}: left out: {type(error).__name__}: {error}\n")
                continue
            made += len(batch.numbers)
            left = (time.monotonic() - began) / made * (groups - made)
            sys.stderr.write(f"{batch.attack.name}: {made} of {groups} groups made, {left / 60:.0f} minutes to go\n")
        return not failed

    def _missing(self, attacks: Sequence[Attack], share: float) -> Iterator[Batch]:
        wanted = {attack.name: max(1, round(attack.groups * share)) for attack in attacks}
        for start in range(0, max(wanted.values(), default=0), BATCH_GROUPS):
            for attack in attacks:
                places = range(start, min(start + BATCH_GROUPS, wanted[attack.name]))
                numbers = [attack.first + place for place in places]
                lacking = [n for n in numbers if any((c, n) not in self._store.records for c in attack.claims())]
                size = max(1, attack.rows // self._bench.group_size) if attack.is_honest else self._at_once
                for first in range(0, len(lacking), size):
                    yield Batch(attack, tuple(lacking[first : first + size]))

    def _make(self, batch: Batch) -> list[Record]:
        attack, bench = batch.attack, self._bench
        groups = [bench.group(number) for number in batch.numbers]
        extra = max(attack.others, default=0)
        requests = [other_seeds(group.requests, extra) + list(group.requests) for group in groups]
        began = time.monotonic()
        said = self._generate(attack, [request for part in requests for request in part])
        seconds = (time.monotonic() - began) / len(groups)
        size = extra + bench.group_size
        records: list[Record] = []
        for number, group in enumerate(groups):
            records += self._claims(attack, group, said[number * size : (number + 1) * size], seconds)
        return records

    def _generate(self, attack: Attack, requests: list[Request]) -> list[Completion]:
        if self._engine is None or self._engine[0] != attack.name:
            self._engine = None  # free the other engine's memory first
            engine = attack.engine(self._bench)
            engine.load(self._bench.model)
            self._engine = attack.name, engine
        threads = torch.get_num_threads()
        torch.set_num_threads(attack.threads or threads)
        try:
            said = self._engine[1].generate(requests, self._bench.settings)
        finally:
            torch.set_num_threads(threads)
        change, eos = attack.change, self._bench.validator.eos
        return [change(item, eos) for item in said] if change else said

    def _claims(self, attack: Attack, group: Assigned, said: list[Completion], seconds: float) -> list[Record]:
        extra = len(said) - len(group.requests)
        if not attack.others:
            return self._observe(attack, group, said, seconds)
        own, records = said[extra:], []
        for count, name in zip(attack.others, attack.claims(), strict=True):
            swapped = said[:count] + own[count:]
            records += self._observe(replace(attack, name=name, others=()), group, swapped, seconds)
        return records

    def _observe(self, attack: Attack, group: Assigned, said: list[Completion], seconds: float) -> list[Record]:
        bench = self._bench
        began = time.monotonic()
        proofs = build_proofs([item.states for item in said])
        proven = [
            Proven(request.prompt, request.seed, item.tokens, proof)
            for request, item, proof in zip(group.requests, said, proofs, strict=True)
        ]
        observation = observe(bench.validator, proven, bench.settings)
        prefills = bench.validator.prefill([(each.prompt, each.output) for each in proven])
        kl = _divergence([item.logits for item in prefills], said, bench.temperature)
        found = [Record(attack.name, group.number, observation, kl, (seconds, time.monotonic() - began))]
        if attack.has_prefilled:
            true = build_proofs([item.states for item in prefills])
            chunks = verify_proofs([(item.states, proof) for item, proof in zip(prefills, true, strict=True)])
            as_prefilled = replace(observation, chunks=tuple(map(tuple, chunks)))
            found.append(replace(found[0], name=attack.name + PREFILLED, observation=as_prefilled))
        return found


def _divergence(logits: Sequence[torch.Tensor], said: Sequence[Completion], temperature: float) -> float:
    """Mean over tokens of `exp(d) - 1 - d` with d = log p(right) - log p(theirs). This estimates their Kullback-Leibler
    divergence; the estimator is never negative and has the lowest variance."""
    parts = []
    for right, item in zip(logits, said, strict=True):
        scaled, tokens = right / temperature, torch.tensor(item.tokens)[:, None]
        own = (scaled.gather(1, tokens)[:, 0] - scaled.logsumexp(-1)).double()
        parts.append(own - torch.tensor(item.logprobs, dtype=torch.float64))
    differences = torch.cat(parts)
    return round(float((differences.expm1() - differences).mean()), 9)
