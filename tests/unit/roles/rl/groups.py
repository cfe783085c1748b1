"""Builders: valid by default, one thing to spoil."""

from roles.rl.batch import TrainingGroup


def make_group(
    *,
    prompt: tuple[int, ...] = (5, 12, 6, 20),
    completions: tuple[tuple[int, ...], ...] = ((5, 12, 6, 14, 1), (19, 5, 5, 1), (5, 1), (7, 8, 9, 10, 11, 1)),
    rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 1.0),
    policy_step: int = 0,
    submission: str = "ab" * 32,
) -> TrainingGroup:
    return TrainingGroup(prompt, completions, rewards, policy_step, submission)
