"""The learner: one model, its optimizer, and the GRPO step that turns rollout groups into the next weights.

Blocking by design; the trainer calls it from one worker thread. Under torchrun (WORLD_SIZE > 1) every rank makes the
same calls with the same groups, and FSDP2 splits the parameters and the rows.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from roles.rl.batch import (
    MicroBatch,
    Row,
    TrainingGroup,
    count_all_tokens,
    count_tokens,
    pad_rows,
    select_rows,
    split_microbatches,
    split_minibatches,
)
from roles.rl.checkpoint import CheckpointError, load_state, save_checkpoint, save_state
from roles.rl.grpo import LossTerms, compute_loss
from roles.rl.metrics import StepMetrics, Totals
from roles.rl.policy import load_policy, score_tokens, shard_policy
from roles.rl.ranks import full_tensor, join_ranks, placed_like
from roles.rl.settings import GrpoSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


class TrainingDiverged(RuntimeError):
    """The gradient is not a finite number. The failing update was not made; earlier ones of its step were."""


class Learner:
    """Holds the policy being trained. Not thread-safe: one call at a time."""

    def __init__(self, base: Path, settings: GrpoSettings, state: Path | None = None) -> None:
        """Load the base checkpoint, then the folder written by `save_state` when given.

        Raises PolicyError or CheckpointError when either cannot be read.
        """
        self.base = base
        self.settings = settings
        self.updates = 0  # optimizer steps made, over all rollout steps
        self.last_step = 0  # the rollout step the weights come from; 0 is the base
        self.ranks = join_ranks()
        self._model = self._load_model()
        self._reference = self._load_model().eval().requires_grad_(False) if settings.kl_coef else None
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        if state is not None:
            self.load_state(state)

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        """Make rollout step `step`: recompute old log-probabilities, then several updates of the weights.

        Without a group that teaches anything the weights stay as they are (a saturated step). Raises ValueError without
        groups, TrainingDiverged when a gradient is not finite.
        """
        if not groups:
            raise ValueError("a step needs at least one group")
        started = time.monotonic()
        rows = select_rows(groups)
        minibatches = split_minibatches(rows, parts=self.settings.optimizer_steps, seed=self.settings.seed + step)
        plans = [self._plan(minibatch) for minibatch in minibatches]
        # all before the first update: they are the weights that the whole step's ratios compare with
        old = [[self._score_frozen(self._model, batch) for batch in plan] for plan in plans]
        totals = Totals()
        # tokens of groups that agree count too: their gradient is zero, not absent, so that a step in which few groups
        # still teach something moves the weights less instead of following those few at full strength
        share = count_all_tokens(groups) / max(1, count_tokens(rows))
        for minibatch, plan, logprobs in zip(minibatches, plans, old, strict=True):
            self._update(plan, logprobs, tokens=count_tokens(minibatch) * share, totals=totals)
        self.last_step = step
        return totals.compute_metrics(
            groups,
            rows,
            ranks=self.ranks,
            step=step,
            learning_rate=self._learning_rate(),
            seconds=time.monotonic() - started,
        )

    def save_weights(self, folder: Path) -> None:
        """Write a checkpoint folder laid out as the base's, atomically. Raises CheckpointError or OSError."""
        weights = {name: full_tensor(tensor) for name, tensor in self._model.state_dict().items()}
        try:
            if self.ranks.writes:
                save_checkpoint(folder, base=self.base, weights=weights)
        finally:
            self.ranks.meet()  # also after a full disk: the others must not wait for ever

    def save_state(self, folder: Path) -> None:
        """Write fp32 weights, optimizer moments and counters as one file: all that an exact resume needs.

        No random state is kept: the shuffle follows from the seed and the step, and the model has no dropout.
        """
        tensors = {}
        for name, parameter in self._model.named_parameters():
            tensors[f"weight.{name}"] = full_tensor(parameter)
            for key in _MOMENTS:
                if parameter in self._optimizer.state:
                    tensors[f"{key}.{name}"] = full_tensor(self._optimizer.state[parameter][key])
        try:
            if self.ranks.writes:
                save_state(folder, tensors, {"updates": self.updates, "step": self.last_step})
        finally:
            self.ranks.meet()

    def load_state(self, folder: Path) -> None:
        """Continue from `save_state`: the next step gives bit-equal weights. On CheckpointError nothing has changed."""
        tensors, numbers = load_state(folder)
        updates, step = numbers.get("updates"), numbers.get("step")
        if not isinstance(updates, int) or not isinstance(step, int):
            raise CheckpointError(f"the state in {folder} has no counters")
        self._check_tensors(tensors, kinds=("weight", *_MOMENTS) if updates else ("weight",))
        self._optimizer.state.clear()
        for name, parameter in self._model.named_parameters():
            with torch.no_grad():
                parameter.copy_(placed_like(parameter, tensors[f"weight.{name}"]))
            if updates:
                moments = {key: placed_like(parameter, tensors[f"{key}.{name}"]) for key in _MOMENTS}
                self._optimizer.state[parameter] = {"step": torch.tensor(float(updates)), **moments}
        self.updates, self.last_step = updates, step

    def load_weights(self, folder: Path, *, step: int, keep_moments: bool) -> None:
        """Take the weights of a published checkpoint of step `step`; the optimizer begins anew, or goes on with the moments
        it has (of some steps before). Raises PolicyError or CheckpointError; nothing has changed then."""
        source = load_policy(folder).state_dict()
        parameters = dict(self._model.named_parameters())
        if any(name not in source or source[name].shape != p.shape for name, p in parameters.items()):
            raise CheckpointError(f"the checkpoint in {folder} is not of the model in {self.base}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(placed_like(parameter, source[name]))
        if not keep_moments:
            self._optimizer.state.clear()
            self.updates = 0
        self.last_step = step

    def _check_tensors(self, tensors: dict[str, Tensor], *, kinds: Sequence[str]) -> None:
        """Raise CheckpointError unless there is exactly one tensor of each kind for each parameter, of its shape."""
        expected = {f"{kind}.{name}": p.shape for name, p in self._model.named_parameters() for kind in kinds}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise CheckpointError(f"the saved state is not of the model in {self.base}")

    def _load_model(self) -> nn.Module:
        model = load_policy(self.base, device=self.ranks.device)
        if self.ranks.mesh is not None:
            shard_policy(model, self.ranks.mesh)
        return model

    def _plan(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """Cut a mini-batch into this rank's micro-batches. Every rank gets equally many, as FSDP's collectives need.

        A rank short of a row passes one with an empty mask; the reference repeats a real one, which biases the mean.
        """
        rank, world, device = self.ranks.rank, self.ranks.world, self.ranks.device
        plan = []
        for chunk in split_microbatches(rows, self.settings.micro_batch * world):
            own = chunk[rank::world]
            batch = pad_rows(own or chunk[:1], device)
            plan.append(batch if own else replace(batch, mask=torch.zeros_like(batch.mask)))
        return plan

    def _score_frozen(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            return score_tokens(model, batch, temperature=self.settings.temperature, entropy_gradient=False).logprobs

    def _update(self, plan: Sequence[MicroBatch], old: Sequence[Tensor], *, tokens: float, totals: Totals) -> None:
        """Make one optimizer step: accumulate the gradient over the micro-batches, clip its norm, move."""
        self._optimizer.zero_grad(set_to_none=True)
        for batch, logprobs in zip(plan, old, strict=True):
            terms = self._compute_loss(batch, logprobs, tokens)
            # FSDP averages over the ranks, while each loss is a share of the sum
            torch.autograd.backward(terms.loss * self.ranks.world)
            totals.add(terms)
        norm = full_tensor(nn.utils.clip_grad_norm_(self._model.parameters(), self.settings.max_grad_norm)).item()
        if not math.isfinite(norm):
            raise TrainingDiverged(f"the gradient norm is {norm} after {self.updates} updates")
        totals.close_update(norm)
        self.updates += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()

    def _compute_loss(self, batch: MicroBatch, old: Tensor, tokens: float) -> LossTerms:
        settings = self.settings
        scores = score_tokens(
            self._model, batch, temperature=settings.temperature, entropy_gradient=settings.entropy_coef > 0
        )
        return compute_loss(
            new=scores.logprobs,
            old=old,
            advantages=batch.advantages,
            mask=batch.mask,
            entropy=scores.entropy,
            tokens=tokens,
            weights=settings.loss_weights(),
            reference=None if self._reference is None else self._score_frozen(self._reference, batch),
        )

    def _learning_rate(self) -> float:
        """Return the rate of the latest update: linear warm-up, then constant."""
        return self.settings.learning_rate * min(1.0, self.updates / max(1, self.settings.warmup_steps))
