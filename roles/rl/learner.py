"""The learner: one model, its optimizer, and the GRPO step that turns rollout groups into the next weights.

Blocking by design; the trainer calls it from one worker thread. Under torchrun (WORLD_SIZE > 1) every rank makes the
same calls with the same groups, and FSDP2 shards the parameters while rows are divided among ranks.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from roles.inference.checkpoint_loading import is_out_of_memory
from roles.rl.batch import (
    MicroBatch,
    Row,
    TrainingGroup,
    count_all_tokens,
    count_tokens,
    select_rows,
    split_minibatches,
)
from roles.rl.checkpoint import CheckpointError, load_state, save_checkpoint, save_state
from roles.rl.frozen import FrozenPolicy, copy_weights, score_still
from roles.rl.grpo import LossTerms, compute_loss
from roles.rl.metrics import StepMetrics, Totals
from roles.rl.plan import Pass, plan_passes
from roles.rl.policy import (
    PolicyError,
    checkpoint_activations,
    load_policy,
    longest_sequence,
    published_weights,
    shard_policy,
)
from roles.rl.ranks import full_tensor, join_ranks, placed_like
from roles.rl.reported import compare_reported
from roles.rl.scoring import Scorer
from roles.rl.settings import GrpoSettings
from roles.rl.sharded import POINTER, fill_from_shards, save_shards, whole_state

_MOMENTS = ("exp_avg", "exp_avg_sq")
_MOVED = "moved"
"""Entry of a state's numbers: update counts of those parameters whose count differs from the learner's."""


class TrainingDiverged(RuntimeError):
    """The gradient is not finite. The failing update was not made; earlier ones of its step were."""


class UnfitGroups(RuntimeError):
    """The groups cannot have been made by this model. No update was made."""


class OutOfMemory(RuntimeError):
    """The device has too little memory for a pass. Updates of the step may have been made:
    resume from the last state."""


class Learner:
    """Holds the policy being trained. Not thread-safe: one call at a time."""

    def __init__(
        self,
        base: Path,
        settings: GrpoSettings,
        *,
        checkpoints: Path | None = None,
        device: str | None = None,
    ) -> None:
        """Load the base checkpoint. `checkpoints` holds the published ones, each in a folder named by its step;
        rollouts are scored under them where the settings require it. `device` None: a GPU if there is one.

        Raises PolicyError or CheckpointError when the base cannot be read.
        """
        self.base = base
        self.settings = settings
        self.checkpoints = checkpoints
        self.updates = 0  # optimizer steps made, over all rollout steps
        self.last_step = 0  # the rollout step the weights come from; 0 is the base
        self.ranks = join_ranks(device)
        self._scorer = self._load(base)
        self._model: nn.Module = self._scorer.model
        if settings.checkpoint_activations:
            checkpoint_activations(self._model)
        self._frozen = FrozenPolicy(self._load)
        if settings.kl_coef:
            self._frozen.hold(base)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        """Make rollout step `step`: recompute old log-probabilities, then make several updates of the weights.

        Without a group that teaches something the weights stay unchanged (a saturated step). Raises ValueError without
        groups, UnfitGroups for tokens or lengths that the model does not support, TrainingDiverged when a gradient is
        not finite, OutOfMemory.
        """
        if not groups:
            raise ValueError("a step needs at least one group")
        try:
            metrics = self._step(groups, step)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemory(str(error).strip().splitlines()[0][:200]) from error
            raise
        self.last_step = step
        return metrics

    def _step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        started = time.monotonic()
        rows = select_rows(groups)
        self._check_rows(rows)
        minibatches = split_minibatches(rows, parts=self.settings.optimizer_steps, seed=self.settings.seed + step)
        plans = self._score_plans([self._plan(minibatch) for minibatch in minibatches], rows)
        totals = Totals(equal_weights=self.settings.old_logprobs == "current")
        for one in chain.from_iterable(plans):
            self._compare_reported(one, totals)
        # Tokens of groups that agree count too: their gradient is zero, not absent. So a step in which few groups still
        # teach something moves the weights less, instead of following those few at full strength.
        share = count_all_tokens(groups) / max(1, count_tokens(rows))
        for minibatch, plan in zip(minibatches, plans, strict=True):
            self._update(plan, tokens=count_tokens(minibatch) * share, totals=totals)
        return totals.compute_metrics(
            groups,
            rows,
            ranks=self.ranks,
            step=step,
            learning_rate=self._learning_rate(),
            seconds=time.monotonic() - started,
            unscored=self._count_unscored(rows),
        )

    def save_weights(self, folder: Path) -> None:
        """Write a checkpoint folder laid out as the base's, atomically. Raises CheckpointError or OSError."""
        weights = {}
        for name, tensor in self._model.state_dict().items():  # one at a time: a device holds its shard and one tensor
            whole = full_tensor(tensor)
            if self.ranks.writes:
                weights[name] = whole.cpu()
        try:
            if self.ranks.writes:
                save_checkpoint(folder, base=self.base, weights=published_weights(self._model, weights))
        finally:
            self.ranks.meet()  # even after a disk error: the other ranks must not wait for ever

    def save_state(self, folder: Path) -> None:
        """Write fp32 weights, optimizer moments and counters: everything needed for an exact resume. One
        file, or one shard per rank.

        No random state is stored: the shuffle follows from the seed and the step, and the model has no dropout.
        """
        tensors, moved = {}, {}
        for name, parameter in self._model.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            known = self._optimizer.state.get(parameter)
            tensors |= {f"{key}.{name}": known[key] for key in _MOMENTS} if known else {}
            if (count := int(known["step"]) if known else 0) != self.updates:
                moved[name] = count  # e.g. an expert that got no token, or a part that sees no text
        numbers: dict[str, int | str] = {"updates": self.updates, "step": self.last_step}
        if moved:
            numbers[_MOVED] = json.dumps(moved, sort_keys=True)
        if self.ranks.world == 1:
            save_state(folder, {name: full_tensor(tensor) for name, tensor in tensors.items()}, numbers)
            return
        save_shards(folder, tensors, numbers, ranks=self.ranks)

    def whole_state(self, folder: Path) -> Path:
        """A file with the complete state stored in a folder. Raises CheckpointError."""
        return whole_state(folder)

    def load_state(self, folder: Path) -> None:
        """Resume from `save_state`, made by any number of ranks. With the same number, the next step gives bit-equal
        weights on CPUs (a GPU adds in no fixed order). On CheckpointError nothing has changed."""
        tensors, numbers = load_state(folder)
        updates, step = numbers.get("updates"), numbers.get("step")
        if not isinstance(updates, int) or not isinstance(step, int):
            raise CheckpointError(f"the state in {folder} has no counters")
        parameters = dict(self._model.named_parameters())
        moved = dict.fromkeys(parameters, updates) | _moved_otherwise(numbers, folder)
        kinds = {name: ("weight", *_MOMENTS) if moved[name] else ("weight",) for name in parameters}
        if POINTER in numbers:
            tensors = {f"{kind}.{name}": torch.empty_like(p) for name, p in parameters.items() for kind in kinds[name]}
            fill_from_shards(folder, str(numbers[POINTER]), tensors)
        self._check_tensors(tensors, kinds=kinds)
        self._frozen.forget()  # a term may begin here, and published checkpoints may be another trainer's
        self._optimizer.state.clear()
        for name, parameter in parameters.items():
            with torch.no_grad():
                parameter.copy_(placed_like(parameter, tensors[f"weight.{name}"]))
            if moved[name]:
                moments = {key: placed_like(parameter, tensors[f"{key}.{name}"]) for key in _MOMENTS}
                self._optimizer.state[parameter] = {"step": torch.tensor(float(moved[name])), **moments}
        self.updates, self.last_step = updates, step

    def load_weights(self, folder: Path, *, step: int, keep_moments: bool) -> None:
        """Load the weights of the published checkpoint of step `step`. The optimizer starts fresh, or keeps its moments
        (from some steps earlier). Raises CheckpointError, with nothing changed."""
        try:
            copy_weights(folder, self._model)
        except PolicyError as error:
            raise CheckpointError(str(error)) from error
        self._frozen.forget()
        if not keep_moments:
            self._optimizer.state.clear()
            self.updates = 0
        self.last_step = step

    def _check_tensors(self, tensors: dict[str, Tensor], *, kinds: Mapping[str, Sequence[str]]) -> None:
        """Raise CheckpointError unless each parameter has exactly one tensor of each of its kinds, with its shape."""
        expected = {f"{kind}.{name}": p.shape for name, p in self._model.named_parameters() for kind in kinds[name]}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise CheckpointError(f"the saved state is not of the model in {self.base}")

    def _load(self, checkpoint: Path) -> Scorer:
        scorer = Scorer(load_policy(checkpoint))
        if self.ranks.mesh is not None:
            shard_policy(scorer, self.ranks.mesh)
        return scorer

    def _check_rows(self, rows: Sequence[Row]) -> None:
        """Raise UnfitGroups for a row that the model cannot have made."""
        vocabulary, limit = self._vocabulary(), longest_sequence(self._model)
        for row in rows:
            if limit is not None and row.length > limit:
                raise UnfitGroups(f"a sequence of {row.length} tokens is longer than the model's {limit} positions")
            if not 0 <= min(*row.prompt, *row.completion) <= max(*row.prompt, *row.completion) < vocabulary:
                raise UnfitGroups(f"a token is none of the model's {vocabulary}: the rollouts have another tokenizer")

    def _vocabulary(self) -> int:
        embedding: Tensor = self._model.get_input_embeddings().weight  # type: ignore[operator]
        return embedding.shape[0]

    def _plan(self, rows: Sequence[Row]) -> list[Pass]:
        scorer = self._scorer
        return plan_passes(rows, ranks=self.ranks, settings=self.settings, packs=scorer.packs, shares=scorer.shares)

    def _score_plans(self, plans: Sequence[Sequence[Pass]], rows: Sequence[Row]) -> list[list[Pass]]:
        """Score every pass under the policies that its loss compares with. This precedes the first update, because the
        weights before the step are one of these policies."""
        passes = [one for plan in plans for one in plan]
        if self.settings.needs_behaviour:
            passes = self._score_behaviour(passes, sorted({row.policy_step for row in rows}))
        if self.settings.old_logprobs == "current":
            passes = [replace(one, old=self._score(one)) for one in passes]
        else:
            passes = [replace(one, old=one.behaviour, behaviour=None) for one in passes]
        if self.settings.kl_coef:
            reference = self._frozen.score(
                self.base, [one.batch for one in passes], temperature=self.settings.temperature
            )
            passes = [replace(one, reference=scores) for one, scores in zip(passes, reference, strict=True)]
        scored = iter(passes)
        return [[next(scored) for _ in plan] for plan in plans]

    def _score_behaviour(self, passes: Sequence[Pass], steps: Sequence[int]) -> list[Pass]:
        """Score each row under the checkpoint, among those steps, that made it, or under the current weights if that
        checkpoint is no longer here."""
        batches = [one.batch for one in passes]
        made_by = [torch.tensor([row.policy_step for row in one.rows])[one.batch.sequence.cpu()] for one in passes]
        found = [torch.zeros_like(batch.advantages) for batch in batches]
        for step in steps:
            scores = self._score_under(step, passes, batches)
            for values, own, score in zip(found, made_by, scores, strict=True):
                here = (own == step).to(values.device)
                values[here] = score[here]
        return [replace(one, behaviour=values) for one, values in zip(passes, found, strict=True)]

    def _score_under(self, step: int, passes: Sequence[Pass], batches: Sequence[MicroBatch]) -> list[Tensor]:
        if folder := self._checkpoint_of(step):
            with suppress(PolicyError):  # damaged on disk: treated as missing
                return self._frozen.score(folder, batches, temperature=self.settings.temperature)
        return [self._score(one) for one in passes]

    def _count_unscored(self, rows: Sequence[Row]) -> int:
        """Number of rows whose own policy is needed but no longer here."""
        if not self.settings.needs_behaviour:
            return 0
        return sum(self._checkpoint_of(row.policy_step) is None for row in rows)

    def _compare_reported(self, one: Pass, totals: Totals) -> None:
        """Compare reported log-probabilities for rows whose own policy was scored, by its checkpoint or as the
        weights before this step."""
        scores = one.old if one.behaviour is None else one.behaviour
        steps = {row.policy_step for row in one.rows}
        if self.settings.needs_behaviour:
            steps = {step for step in steps if self._checkpoint_of(step) is not None}
        else:
            steps &= {self.last_step}
        if scores is not None and steps:
            totals.compare(compare_reported(one, scores, steps=steps))

    def _checkpoint_of(self, step: int) -> Path | None:
        if self.checkpoints is not None and (self.checkpoints / str(step) / "config.json").is_file():
            return self.checkpoints / str(step)
        return self.base if step == 0 else None

    def _score(self, one: Pass) -> Tensor:
        return score_still(self._scorer, one.batch, temperature=self.settings.temperature)

    def _update(self, plan: Sequence[Pass], *, tokens: float, totals: Totals) -> None:
        """Make one optimizer step: accumulate the gradient over the micro-batches, clip its norm, move."""
        self._optimizer.zero_grad(set_to_none=True)
        for one in plan:
            terms = self._compute_loss(one, tokens, totals)
            # FSDP averages over the ranks, but each loss is a share of the sum
            torch.autograd.backward(terms.loss * self.ranks.world)
        norm = full_tensor(nn.utils.clip_grad_norm_(self._model.parameters(), self.settings.max_grad_norm)).item()
        if not math.isfinite(norm):
            raise TrainingDiverged(f"the gradient norm is {norm} after {self.updates} updates")
        totals.close_update(norm)
        self.updates += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()

    def _compute_loss(self, one: Pass, tokens: float, totals: Totals) -> LossTerms:
        settings = self.settings
        scores = self._scorer(one.batch, temperature=settings.temperature, entropy_gradient=settings.entropy_coef > 0)
        given = one.tokens(scores.logprobs)
        terms = compute_loss(
            given,
            entropy=scores.entropy,
            tokens=tokens,
            weights=settings.loss_weights(),
            reference=one.reference,
        )
        totals.add(terms, given)
        return terms

    def _learning_rate(self) -> float:
        """Return the rate of the latest update: linear warm-up, then constant."""
        return self.settings.learning_rate * min(1.0, self.updates / max(1, self.settings.warmup_steps))


def _moved_otherwise(numbers: Mapping[str, int | str], folder: Path) -> dict[str, int]:
    """The state's `_MOVED` entry. Raises CheckpointError when it is malformed."""
    try:
        return {str(name): int(count) for name, count in json.loads(str(numbers.get(_MOVED, "{}"))).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the state in {folder} does not tell how often each parameter was moved") from error
