"""The totals that the testnet's view derives from events."""

from __future__ import annotations

from node.testnet.picture import Picture, sparkline


def verdict(submission: str, outcome: str, *, reason: str = "accepted", tokens: int = 10) -> dict[str, object]:
    return {
        "ts": 1.0,
        "event": "verdict.signed",
        "submission": submission,
        "node": "worker",
        "outcome": outcome,
        "reason": reason,
        "tokens": tokens,
    }


def test_take__quorum_accepts_once__dht_28() -> None:
    picture = Picture(quorum=2)
    picture.take("validator-1", verdict("s", "accept"))
    assert not picture.accepted
    picture.take("validator-2", verdict("s", "accept"))
    picture.take("validator-3", verdict("s", "accept"))
    assert picture.tokens == {"worker": 10}


def test_take__quorum_refuses_with_the_reason() -> None:
    picture = Picture(quorum=2)
    for validator in ("validator-1", "validator-2"):
        picture.take(validator, verdict("s", "fault", reason="computation"))
    assert picture.reasons == {"computation": 1}
    assert not picture.tokens


def test_take__soft_refusal_resolved_counts_as_accepted() -> None:
    picture = Picture(quorum=1)
    picture.take("validator-1", verdict("s", "soft", reason="blob_missing"))
    picture.take("validator-1", verdict("s", "accept"))
    assert picture.accepted == {"s"}
    assert not picture.reasons


def test_reward_curve__by_step() -> None:
    picture = Picture(quorum=1)
    for step, reward in ((2, 0.5), (1, 0.25)):
        picture.take("trainer", {"ts": 1.0, "event": "batch.closed", "step": step, "reward": reward})
    assert picture.reward_curve == [0.25, 0.5]


def test_sparkline__spans_nought_to_one() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(sparkline([0.5] * 100, width=60)) == 60


def test_outcomes_of__what_became_of_a_nodes_submissions() -> None:
    picture = Picture(quorum=1)
    picture.take("validator-1", verdict("s", "accept"))
    picture.take("validator-1", verdict("t", "fault", reason="wrong_reward"))
    picture.take("validator-1", {"ts": 1.0, "event": "node.ejected", "node": "worker"})
    assert picture.outcomes_of("worker") == (1, {"wrong_reward": 1})
    assert picture.outcomes_of("another") == (0, {})
    assert picture.ejected == {"worker"}
