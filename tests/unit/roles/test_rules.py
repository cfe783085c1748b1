"""Rules that no other test reaches through the gate."""

from __future__ import annotations

import pytest

from roles.rules import SENTENCES, Ignore, Reason, Reject, SoftReject, check_timing, name_of
from tests.builders import make_head, make_submission, make_world


def test_sentences__every_reason_has_one_for_people() -> None:
    assert set(SENTENCES) == set(Reason)
    assert len(set(SENTENCES.values())) == len(Reason)


def test_name_of__a_reason_of_a_later_version() -> None:
    assert name_of(Reason.PROOF_MISMATCH) == "proof_mismatch"
    assert name_of(998) == "998"


@pytest.mark.parametrize("head", [1, 3])
def test_check_timing__in_time_up_to_async_level_steps_later(head: int) -> None:
    check_timing(make_submission(make_world()), head=make_head(head), async_level=2, vouched=False)


def test_check_timing__ignore_late() -> None:
    with pytest.raises(Ignore) as caught:
        check_timing(make_submission(make_world()), head=make_head(4), async_level=2, vouched=False)
    assert caught.value.reason is Reason.LATE


def test_check_timing__once_in_time_always_in_time() -> None:
    check_timing(make_submission(make_world()), head=make_head(9), async_level=2, vouched=True)


def test_refusal__says_the_rule_and_what_was_seen() -> None:
    assert str(SoftReject(Reason.BLOB_MISSING)) == "no relay has the blob"
    assert str(Reject(Reason.WRONG_SEED, "row 3")) == "a sampling seed is not the assigned one (row 3)"
