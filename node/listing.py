"""Lists the runs of a ledger for somebody looking for one: progress, pay, size and requirements.

What the contract holds is known of every run. The rest is in the run's spec, which its relays serve, so it is shown
only for a run whose join string or spec is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ledger.client import LedgerClient
from ledger.records import RunTerms
from roles.requirements import describe_requirements
from roles.spec import RunSpec

PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class About:
    """The parts of a run's spec that matter to somebody who might join. Sizes in bytes."""

    name: str
    model: str
    model_bytes: int
    tasks: tuple[str, ...]
    steps: int
    tokens: int  # maximum per completion
    requirements: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One run. `reward` and `min_stake` are base units of `token` (None: the chain's coin); `reward` is per epoch."""

    run: str
    state: str  # "not started", "open" or "ended"
    step: int
    owner: str
    trainers: int
    validators: int
    quorum: int
    registered: int
    reward: int
    min_stake: int
    token: str | None
    about: About | None


async def list_runs(urls: Sequence[str], contract: str, *, specs: Mapping[str, RunSpec]) -> list[Listing]:
    """Every run of the contract, oldest first. Raises LedgerError."""
    async with await LedgerClient.connect(urls, contract=contract, patience=PATIENCE) as ledger:
        found = await ledger.runs()
        return [await _listing(urls, contract, await ledger.terms(run), specs.get(run)) for run in found]


async def _listing(urls: Sequence[str], contract: str, terms: RunTerms, spec: RunSpec | None) -> Listing:
    async with await LedgerClient.connect(urls, contract=contract, run=terms.run, patience=PATIENCE) as ledger:
        commits = await ledger.commits()
        registered = len(await ledger.registrations())
    newest = commits[-1] if commits else None
    return Listing(
        run=terms.run,
        state="not started" if newest is None else "ended" if newest.final else "open",
        step=newest.step if newest else 0,
        owner=terms.owner,
        trainers=len(terms.trainers),
        validators=len(terms.validators),
        quorum=terms.quorum,
        registered=registered,
        reward=terms.epoch_budget,
        min_stake=terms.min_stake,
        token=terms.token,
        about=describe_run(spec) if spec else None,
    )


def describe_run(spec: RunSpec) -> About:
    """Extract the parts of a spec that help to choose a run."""
    return About(
        name=spec.name,
        model=spec.model.name,
        model_bytes=sum(file.size for file in spec.model.files),
        tasks=tuple(task.name for task in spec.tasks),
        steps=spec.training.steps,
        tokens=spec.sampling.max_tokens,
        requirements=describe_requirements(spec.requirements),
    )
