"""The GRPO parameters that only the trainer uses, with the reason for each default."""

from dataclasses import dataclass
from typing import Literal

from roles.rl.grpo import LossWeights
from roles.rl.objectives import CORRECTED


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """Defaults suit the default policy (0.74M parameters); a 32B model needs `learning_rate`
    3e-7, clip 0.1, warm-up 25.

    Raises ValueError on a value that cannot work.
    """

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    eps: float = 0.2
    delta: float | None = 4.0
    kl_coef: float = 0.05  # keeps late, small batches from unlearning; above 0 the base stays in memory as reference
    entropy_coef: float = 0.0
    loss: str = "grpo"  # one of `roles.rl.objectives.OBJECTIVES`
    loss_low: float | None = None  # bounds of the loss; None: its defaults
    loss_high: float | None = None
    old_logprobs: Literal["current", "behaviour"] = "current"  # policy in the ratios' denominator
    max_grad_norm: float = 0.5
    optimizer_steps: int = 2  # mini-batches, hence updates, per rollout step
    warmup_steps: int = 0  # optimizer steps of linear warm-up
    micro_batch: int = 64  # tokens per forward pass, as a multiple of the longest row
    micro_tokens: int = 0  # tokens in one forward pass; 0: by `micro_batch`
    checkpoint_activations: bool = False  # a third more work for far less memory
    temperature: float = 1.0  # the one the rollouts were sampled at
    seed: int = 0  # of the shuffle

    def __post_init__(self) -> None:
        """Reject values that cannot work, before any model is loaded."""
        positive = ("learning_rate", "max_grad_norm", "optimizer_steps", "micro_batch", "temperature")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "kl_coef", "entropy_coef", "warmup_steps", "micro_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")
        if self.loss in CORRECTED and self.old_logprobs != "current":
            raise ValueError(f"{self.loss} corrects current against behaviour itself: old_logprobs must be current")
        self.loss_weights()

    @property
    def needs_behaviour(self) -> bool:
        """Whether rollouts are scored under the policy that made them."""
        return self.old_logprobs == "behaviour" or self.loss in CORRECTED

    def loss_weights(self) -> LossWeights:
        """Return the parameters that the loss needs. Raises ValueError when the clips contradict each other."""
        return LossWeights(
            eps=self.eps,
            delta=self.delta,
            kl_coef=self.kl_coef,
            entropy_coef=self.entropy_coef,
            objective=self.loss,
            low=self.loss_low,
            high=self.loss_high,
        )
