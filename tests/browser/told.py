"""Stories of networks that never ran, told event by event as real nodes would."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from node.status.story import Story

REASONS = ("proof_mismatch", "sampling_mismatch", "wrong_prompt")
WALLET = "0x44688322193cF72A49A9AAa8453746B50747D56b"


@dataclass
class Network:
    """The number of nodes per role, and the events so far."""

    story: Story = field(default_factory=Story)
    workers: int = 2
    validators: int = 3
    relays: int = 2
    said: int = 0
    at: float = field(default_factory=lambda: time.time() - 60)

    def say(self, source: str, event: str, **fields: object) -> None:
        """Add one event, a moment after the last."""
        self.at += 0.01
        self.said += 1
        role = source.partition("-")[0]
        self.story.take(source, {"ts": self.at, "level": "info", "role": role, "event": event, **fields})

    def names(self, role: str) -> list[str]:
        """Names of a role's nodes."""
        return [f"{role}-{number + 1}" for number in range(getattr(self, f"{role}s"))]

    def start(self) -> None:
        """Every node starts and is ready."""
        self.story.describe(
            kind="testnet", role="testnet", title="worked sums", run="5d" * 32, quorum=2, steps=30, block=42
        )
        for name in ("trainer", *self.names("worker"), *self.names("validator"), *self.names("relay")):
            self.say(name, "node.started", version="0.1.0", node=f"12D3KooW{name}", run="5d" * 32, pid=1)
            self.say(name, "node.ready", seconds=11.3)
        for name in self.names("worker"):
            self.say(name, "node.registered", wallet=WALLET, linked=True)

    def step(self, step: int, *, refuse: bool = False) -> None:
        """Add the events of one step."""
        self.say("trainer", "step.opened", step=step, policy_step=step - 1, limit=3)
        for number, worker in enumerate(self.names("worker")):
            self.submit(worker, step, is_wrong=refuse and number == 0)
        reward = min(0.98, 0.3 + 0.03 * step)
        self.say("trainer", "batch.closed", step=step, outcome="full", groups=16, dropped=0, reward=reward)
        self.say(
            "trainer", "step.trained", step=step, reward=reward, entropy=0.04, clipped_low=0.001, clipped_high=0.0,
            clipped_delta=0.0, kl=0.01, grad_norm=0.4, seconds=2.4, tokens=3400, groups_used=16, timeline={"save": 0.1},
            ratio_low=0.9, ratio_median=1.0, ratio_high=1.1, effective_sample=0.98, staleness=1.0, idle_share=0.1,
        )  # fmt: skip
        self.say("trainer", "checkpoint.published", step=step, manifest="ab" * 32, bytes=2973363, relays=2, seconds=0.7)
        self.say("trainer", "checkpoint.committed", step=step, manifest="ab" * 32, block=40 + step, seconds=0.2)

    def submit(self, worker: str, step: int, *, index: int = 0, is_wrong: bool = False) -> str:
        """Add a submission with its verdicts. Returns the key of its row."""
        digest = f"{hash((worker, step, index)) & (2**128 - 1):064x}"
        place = {"step": step, "index": index}
        self.say(worker, "submission.made", **place, policy_step=step - 1, tokens=900, reward=0.5, seconds=0.4)
        self.say(worker, "submission.sent", **place, submission=digest, tokens=900, relays=2, policy_step=step - 1)
        outcome, reason = ("fault", REASONS[step // 3 % 3]) if is_wrong else ("accept", "accepted")
        for validator in self.names("validator")[:3]:
            self.say(
                validator, "verdict.signed", **place, submission=digest, node=f"12D3KooW{worker}", tokens=900,
                outcome=outcome, reason=reason, detail="", seconds=0.2,
            )  # fmt: skip
        return f"{worker}/{step}/{index}"


def told_network(*, steps: int = 12, workers: int = 2, validators: int = 3, relays: int = 2) -> Network:
    """A network that has trained some steps, with a refused submission in every third."""
    network = Network(workers=workers, validators=validators, relays=relays)
    network.start()
    for step in range(1, steps + 1):
        network.step(step, refuse=step % 3 == 0)
    if steps:
        network.story.set_wallets({WALLET: {"final": 12_000, "pending": 3_400, "nodes": network.names("worker")}})
    return network
