"""The numbers of a GRPO run that the trainer alone uses, with the reason of each default."""

from dataclasses import dataclass

from roles.rl.grpo import LossWeights


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """Defaults fit the default policy (0.74M parameters); a 32B model wants `learning_rate` 3e-7, clip 0.1, warm-up 25.

    Raises ValueError on a number that cannot work.
    """

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    eps: float = 0.2
    delta: float | None = 4.0
    kl_coef: float = 0.05  # keeps late, small batches from unlearning; above 0 the base stays in memory as reference
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    optimizer_steps: int = 2  # mini-batches, hence updates, per rollout step
    warmup_steps: int = 0  # optimizer steps of linear warm-up
    micro_batch: int = 64  # rows in one forward pass
    temperature: float = 1.0  # the one the rollouts were sampled at
    seed: int = 0  # of the shuffle

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work, before any model is loaded."""
        positive = ("learning_rate", "max_grad_norm", "optimizer_steps", "micro_batch", "temperature")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "kl_coef", "entropy_coef", "warmup_steps"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")
        self.loss_weights()

    def loss_weights(self) -> LossWeights:
        """Return the part the loss needs. Raises ValueError when the clips contradict each other."""
        return LossWeights(self.eps, self.delta, self.kl_coef, self.entropy_coef)
