"""What a single node's page knows beyond its own events: rows it admitted, the run's terms, final tallies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.status.knowledge import Knowledge
from node.status.story import Story
from roles.shardcast.replies import RelayInfo
from tests.builders import STRANGER, VALIDATORS, WORKERS, World, make_submission, make_verdict, make_world


def no_relays() -> Sequence[RelayInfo]:
    return ()


@pytest.fixture
def world() -> World:
    return make_world()


def look(world: World, story: Story | None = None) -> Story:
    """A story after one look at a trusted state."""
    story = story or Story()
    Knowledge(story, world.trusted, no_relays).refresh()
    return story


def test_refresh__the_runs_terms_and_operators(world: World) -> None:
    story = look(world)
    facts = story.tables.get("facts", "all")
    assert (facts["run"], facts["quorum"]) == (world.spec.run_id, world.spec.quorum)
    roles = [row["role"] for _, row in story.tables.rows("node")]
    assert roles.count("validator") == len(world.spec.validators)
    assert world.trusted.view is not None
    assert facts["block"] == world.trusted.view.head.number


def test_refresh__relays_that_are_known(world: World) -> None:
    story = Story()
    Knowledge(story, world.trusted, lambda: [RelayInfo(STRANGER.node, "http://relay")]).refresh()
    assert [row["id"] for _, row in story.tables.rows("node") if row["role"] == "relay"] == [STRANGER.node]


def test_refresh__verdicts_of_everybody_decide(world: World) -> None:
    submission = make_submission(world)
    world.trusted.admit_submission(world.row(submission, WORKERS[0]))
    for key in VALIDATORS[:2]:
        world.trusted.admit_verdict(world.row(make_verdict(submission), key))
    ((_, row),) = look(world).tables.rows("submission")
    assert (row["outcome"], len(row["votes"])) == ("accepted", 2)
    assert row["tokens"] == submission.tokens


def test_refresh__own_words_are_not_told_twice(world: World) -> None:
    submission, story = make_submission(world), Story()
    admitted = world.trusted.admit_submission(world.row(submission, WORKERS[0]))
    story.take("worker", {"ts": 1.0, "event": "node.started", "node": WORKERS[0].node})
    place = {"step": submission.step, "index": submission.index, "submission": admitted.digest}
    story.take("worker", {"ts": 2.0, "event": "submission.sent", "tokens": submission.tokens, "relays": 2, **place})
    look(world, story)
    ((key, row),) = story.tables.rows("submission")
    assert (key, row["sent"]) == (f"worker/{submission.step}/{submission.index}", 2.0)


def test_refresh__at_most_once_a_second(world: World) -> None:
    story = Story()
    knowledge = Knowledge(story, world.trusted, no_relays)
    knowledge.refresh()
    world.trusted.admit_submission(world.row(make_submission(world), WORKERS[0]))
    knowledge.refresh()
    assert story.tables.rows("submission") == []
    assert knowledge.is_watched
