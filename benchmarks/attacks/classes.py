"""The classes that only statistics can tell from honest work, and the honest environments to tell them from.

All get the same groups. A class generates with an engine of its own. Its *claims* are what it submits for the result:
under the class's own name with proofs of its own states and, where another model decoded, also as `.. + prefill` with
the right model's proofs of the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.attacks.bench import Bench
from benchmarks.attacks.updates import Updated
from node.testnet.adversaries import engines, weights
from roles.inference.engine import Completion, Engine, Request

SYSTEM = "<|im_start|>system\nYou are a pirate. Answer in rhymes.<|im_end|>\n"
PREFILLED = " + prefill"


@dataclass(frozen=True, slots=True)
class Attack:
    """One class. It has `groups` groups in a full run, numbered from `first`; `rows` are generated together, with
    `threads` PyTorch threads (0: the program's default).

    `others`: for each number, that many completions per group are sampled with seeds of the worker's choice and
    claimed for the assigned ones; each number is a claim of its own, named `.. N of 8`. `is_honest` and
    `is_curve` control the report.
    """

    name: str
    says: str
    groups: int
    engine: Callable[[Bench], Engine]
    rows: int = 64
    threads: int = 0
    has_prefilled: bool = False
    others: tuple[int, ...] = ()
    change: Callable[[Completion, int], Completion] | None = None
    is_honest: bool = False
    is_curve: bool = False
    needs: str = ""  # a package that may not be installed
    first: int = 0  # number of its first group

    def claims(self) -> tuple[str, ...]:
        """Names under which its groups are stored."""
        if self.others:
            return tuple(f"{self.name} {count} of 8" for count in self.others)
        return (self.name, self.name + PREFILLED) if self.has_prefilled else (self.name,)


def _honest(
    name: str, groups: int, *, attention: str = "sdpa", rows: int = 64, threads: int = 0, first: int = 0
) -> Attack:
    says = f"{attention}, {rows} completions together" + (f", {threads} threads" if threads else "")
    return Attack(
        name,
        says,
        groups,
        lambda bench: bench.new_engine(attention=attention, rows=rows),
        rows=rows,
        threads=threads,
        first=first,
        is_honest=True,
    )


def _weights(
    name: str, says: str, alteration: weights.Alteration, *, groups: int = 32, is_curve: bool = False
) -> Attack:
    return Attack(
        name,
        says,
        groups,
        lambda bench: engines.AlteredWeights(bench.new_engine(), alteration),
        has_prefilled=not is_curve,
        is_curve=is_curve,
    )


def _samples(name: str, says: str, **changes: Any) -> Attack:
    return Attack(
        name, says, 32, lambda bench: engines.OtherSettings(bench.new_engine(), lambda own: replace(own, **changes))
    )


def _plain(bench: Bench) -> Engine:
    return bench.new_engine()


def _updated(learning_rate: float, updates: int) -> Attack:
    return Attack(
        f"{updates} updates at {learning_rate:g}",
        f"what the run's learner makes of the policy in {updates} updates",
        8,
        lambda bench: Updated(bench.new_engine(), bench, learning_rate=learning_rate, updates=updates),
        is_curve=True,
    )


CURVE_GROUPS = 16
ATTACKS: tuple[Attack, ...] = (
    _honest("honest: sdpa, 64 rows", 96),
    _honest("honest: eager, 64 rows", 64, attention="eager"),
    _honest("honest: sdpa, 8 rows", 48, rows=8),
    # groups of its own: where PyTorch uses two threads anyway, the same groups would be counted twice
    _honest("honest: sdpa, 64 rows, 2 threads", 48, threads=2, first=10_000),
    Attack(
        "honest: vllm, 64 rows",
        "vLLM, 64 completions together",
        48,
        lambda bench: bench.new_vllm(),
        is_honest=True,
        needs="vllm",
    ),
    _weights("int8", "every matrix rounded to 8 bits, a scale for each row", weights.quantised(8)),
    _weights("fp8", "every matrix rounded to float8 e4m3, a scale for each row", weights.eight_bit_float()),
    _weights("int4", "every matrix rounded to 4 bits, a scale for each row", weights.quantised(4)),
    _weights("int8, head whole", "as int8, embedding and head left alone", weights.quantised(8, whole_head=True)),
    _weights("fp8, head whole", "as fp8, embedding and head left alone", weights.eight_bit_float(whole_head=True)),
    _weights(
        "int4 by 32, head whole", "4 bits, a scale for each 32 numbers", weights.quantised(4, group=32, whole_head=True)
    ),
    _weights("fewer layers", "the last of its layers left out", weights.fewer_layers(0.97)),
    _weights("smaller model", "half the depth: every other layer", weights.every_other_layer()),
    _weights("other model", "noise of 10% of each matrix's spread", weights.other_weights(0.1)),
    Attack(
        "other system prompt",
        "a system prompt of its own before the assigned prompt",
        32,
        lambda bench: engines.HiddenPrompt(bench.new_engine(), SYSTEM if bench.chat else "1+1="),
        has_prefilled=True,
    ),
    _samples("temperature 0.9", "temperature 0.9 instead of 1", temperature=0.9),
    _samples("temperature 1.1", "temperature 1.1 instead of 1", temperature=1.1),
    _samples("temperature 0.6", "temperature 0.6 instead of 1", temperature=0.6),
    _samples("greedy", "the likeliest token", temperature=0.0),
    _samples("top-k 50", "the 50 likeliest tokens only", top_k=50),
    _samples("top-p 0.95", "the likeliest 95% only", top_p=0.95),
    Attack("early end", "an end token put in the middle of each completion", 32, _plain, change=engines.ended_early),
    Attack("best of two", "so many completions sampled anew with other seeds", 32, _plain, others=(1, 2, 4)),
    Attack(
        "one for all",
        "one completion handed in for the whole group",
        32,
        lambda bench: engines.Repeating(bench.new_engine()),
    ),
    _updated(1e-6, 4),
    _updated(1e-5, 4),
    _updated(1e-4, 4),
    *(
        _weights(
            f"stale {size:g}",
            f"each weight {size:g} away, as after some updates",
            weights.signed_steps(size),
            groups=CURVE_GROUPS,
            is_curve=True,
        )
        for size in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4)
    ),
    *(
        _weights(
            f"fine-tuned {size:g}",
            f"a change of rank 8, {size:.1%} of each matrix",
            weights.low_rank(size),
            groups=CURVE_GROUPS,
            is_curve=True,
        )
        for size in (0.001, 0.003, 0.01, 0.03, 0.1)
    ),
)


def other_seeds(requests: Sequence[Request], count: int) -> list[Request]:
    """The first `count` requests with seeds of the worker's own."""
    return [replace(request, seed=request.seed ^ (1 << 61)) for request in requests[:count]]
