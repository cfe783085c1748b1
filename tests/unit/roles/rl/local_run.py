"""GRPO without a network: sample from a checkpoint, score, train, with policies as stale as requested."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roles.rl.batch import TrainingGroup
from roles.rl.learner import Learner
from roles.rl.metrics import StepMetrics
from roles.rl.settings import GrpoSettings
from roles.tasks import load_task

POLICY = Path("roles/rl/default_policy")
MAX_NEW_TOKENS = 48


@dataclass
class Sampler:
    """The policy as a worker runs it: left padding with matching positions, temperature 1."""

    checkpoint: Path = POLICY
    task_size: int = 2048

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(self.checkpoint, dtype=torch.float32).eval()
        self.task = load_task("arithmetic", {"size": self.task_size})

    def sample(self, indices: list[int], *, samples: int, policy_step: int = 0) -> list[TrainingGroup]:
        """Complete each prompt `samples` times, ending after `<eos>`, which belongs to the completion."""
        prompts = [self.task.prompt(index) for index in indices for _ in range(samples)]
        inputs = self.tokenizer(prompts, padding=True, return_tensors="pt")
        with torch.no_grad():
            output = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=True,
                temperature=1.0,
                top_k=0,
            )
        rows = [self._cut(row) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]
        return [
            self._group(index, rows[place * samples : (place + 1) * samples], policy_step)
            for place, index in enumerate(indices)
        ]

    def _cut(self, tokens: list[int]) -> tuple[int, ...]:
        end = self.tokenizer.eos_token_id
        return tuple(tokens[: tokens.index(end) + 1] if end in tokens else tokens)

    def _group(self, index: int, rows: list[tuple[int, ...]], policy_step: int) -> TrainingGroup:
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return TrainingGroup(
            prompt=tuple(self.tokenizer.encode(self.task.prompt(index))),
            completions=tuple(rows),
            rewards=tuple(self.task.score(index, text) for text in texts),
            policy_step=policy_step,
            submission="00" * 32,
        )


@dataclass
class LocalRun:
    """A whole run in one process. `staleness` is how many updates old the sampling policy is: `async_level`."""

    settings: GrpoSettings = field(default_factory=GrpoSettings)
    seed: int = 0
    staleness: int = 0
    prompts: int = 16
    samples: int = 8

    def steps(self, count: int) -> Iterator[StepMetrics]:
        """Steps, made one at a time as they are requested."""
        torch.manual_seed(self.seed)
        rng, sampler, learner = random.Random(self.seed), Sampler(), Learner(POLICY, self.settings)
        kept = deque([self._weights(learner)], maxlen=self.staleness + 1)
        for step in range(1, count + 1):
            sampler.model.load_state_dict(kept[0])
            indices = [rng.randrange(sampler.task.size) for _ in range(self.prompts)]
            groups = sampler.sample(indices, samples=self.samples, policy_step=max(0, step - 1 - self.staleness))
            yield learner.step(groups, step)
            kept.append(self._weights(learner))

    def _weights(self, learner: Learner) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in learner._model.state_dict().items()}
