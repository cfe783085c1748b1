"""Judgements: every reason for refusing a row or submission, whose fault it is, and the gate rules. Pure.

A `Reject` is provable and counts against the signer; a `SoftReject` costs only the credit. For an `Ignore`
nothing is signed, and the row is examined again when a head, a block or a predecessor arrives. Clock, head
and ledger are arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from dht.encoding import ZERO_DIGEST
from roles.assignment import policy_window
from roles.messages import Head, OpenStep, Submission
from roles.spec import RunSpec


class Reason(IntEnum):
    """The reason of a judgement. Hundreds are the stages of verification, in order; 0 is acceptance."""

    ACCEPTED = 0
    # 1xx: the row itself
    NOT_A_VALIDATOR = 101
    NOT_THE_LEADER = 102
    OLD_TERM = 103
    UNREGISTERED = 110
    UNKNOWN_STEP = 111
    LATE = 112
    OVER_LIMIT = 113
    GAP = 114
    BEACON_UNKNOWN = 115
    POLICY_UNCOMMITTED = 116
    EJECTED = 117
    NO_STAKE = 118
    TERM_UNKNOWN = 119
    STALE_POLICY = 120
    WRONG_POLICY = 121
    NOT_ADMITTED = 122
    WRONG_COUNTS = 123
    EQUIVOCATION = 124
    REPEATED_EQUIVOCATION = 125
    # 2xx: the blob
    BLOB_MISSING = 201
    BLOB_TOO_LARGE = 202
    WRONG_SIZE = 203
    SCHEMA = 204
    BOUNDS = 205
    WRONG_UNITS = 206
    # 3xx: assignment
    WRONG_IDENTITY = 301
    WRONG_PROBLEM = 302
    WRONG_PROMPT = 303
    WRONG_SEED = 304
    WRONG_TURNS = 305
    # 4xx: reward
    WRONG_REWARD = 401
    SCORING_TIMEOUT = 402
    # 5xx: termination
    BAD_TERMINATION = 501
    # 6xx: computation (TOPLOC)
    PROOF_MALFORMED = 601
    PROOF_MISMATCH = 602
    PROOF_UNCERTAIN = 603
    # 7xx: sampling
    SAMPLING_MISMATCH = 701
    SAMPLING_UNCERTAIN = 702
    TWO_HUMPED = 703
    # 8xx: duplicates
    DUPLICATE = 801
    # 9xx: all statistics joined, over a submission and over a node's history
    JOINED_MISMATCH = 901
    JOINED_UNCERTAIN = 902
    HISTORY_DEVIATES = 903


SENTENCES: dict[int, str] = {
    Reason.ACCEPTED: "accepted",
    Reason.NOT_A_VALIDATOR: "signed by a node that is not a validator of this run",
    Reason.NOT_THE_LEADER: "signed by a node that is not the leading trainer",
    Reason.OLD_TERM: "the term is not the ledger's",
    Reason.UNREGISTERED: "the node is not registered on the ledger",
    Reason.UNKNOWN_STEP: "the step is not open yet",
    Reason.LATE: "first seen after the step had closed",
    Reason.OVER_LIMIT: "the index is not below the step's limit",
    Reason.GAP: "the submission before it has not been seen",
    Reason.BEACON_UNKNOWN: "the block that fixes the node's assignment is not known yet",
    Reason.POLICY_UNCOMMITTED: "the policy's checkpoint is not committed on the ledger yet",
    Reason.EJECTED: "a strike of the validators is in force against the node",
    Reason.NO_STAKE: "less is staked for the node than the run asks for",
    Reason.TERM_UNKNOWN: "the ledger has not shown this term yet",
    Reason.STALE_POLICY: "the policy is outside the step's window",
    Reason.WRONG_POLICY: "the policy is not the committed checkpoint of its step",
    Reason.NOT_ADMITTED: "the step's share does not admit this index",
    Reason.WRONG_COUNTS: "the counts of groups or completions are not the spec's",
    Reason.EQUIVOCATION: "another submission of the same index was accepted first",
    Reason.REPEATED_EQUIVOCATION: "the node signed several submissions of one index, again and again",
    Reason.BLOB_MISSING: "no relay has the blob",
    Reason.BLOB_TOO_LARGE: "the blob is larger than the run allows",
    Reason.WRONG_SIZE: "the blob's size is not the one signed",
    Reason.SCHEMA: "the blob is not a rollout file of this schema",
    Reason.BOUNDS: "a value is outside its bounds",
    Reason.WRONG_UNITS: "the token count is not the one signed",
    Reason.WRONG_IDENTITY: "a row names another run, node, step, policy or index",
    Reason.WRONG_PROBLEM: "a prompt is not the assigned one",
    Reason.WRONG_PROMPT: "the prompt's tokens are not the problem's",
    Reason.WRONG_SEED: "a sampling seed is not the assigned one",
    Reason.WRONG_TURNS: "a call, or a tool's answer to it, is not what it must be",
    Reason.WRONG_REWARD: "a reward is not what the scorer gives",
    Reason.SCORING_TIMEOUT: "scoring took too long",
    Reason.BAD_TERMINATION: "a completion ends neither at EOS nor at the maximum length",
    Reason.PROOF_MALFORMED: "a proof does not parse",
    Reason.PROOF_MISMATCH: "the proof is not of this model's computation",
    Reason.PROOF_UNCERTAIN: "the proof deviates more than honest computation does",
    Reason.SAMPLING_MISMATCH: "the tokens are not what seeded sampling gives",
    Reason.SAMPLING_UNCERTAIN: "the tokens deviate more than honest sampling does",
    Reason.TWO_HUMPED: "the chosen tokens' probabilities look like another model's",
    Reason.DUPLICATE: "the completion was submitted before by the node it was assigned to",
    Reason.JOINED_MISMATCH: "proofs and tokens together are not of this model's computation",
    Reason.JOINED_UNCERTAIN: "proofs and tokens together deviate more than honest ones do",
    Reason.HISTORY_DEVIATES: "the node's submissions together deviate more than an honest node's do",
}

PASSING = frozenset({Reason.BLOB_MISSING, Reason.SCORING_TIMEOUT})
"""Soft refusals that turn into acceptances once the missing thing is available."""


def name_of(reason: int) -> str:
    """The name of a reason, such as `wrong_reward`; the number itself if this version does not know it."""
    return Reason(reason).name.lower() if reason in SENTENCES else str(reason)


class Refusal(Exception):
    """A judgement against a row: `reason` names the rule, `detail` what was observed."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{SENTENCES[reason]}{f' ({detail})' if detail else ''}")


class Reject(Refusal):
    """The signer is provably at fault."""


class SoftReject(Refusal):
    """The submission earns no credit, but nobody is struck: the cause is bad luck or another party's fault."""


class Ignore(Refusal):
    """The row is late, a duplicate, or not decidable yet. Nothing is signed."""


def check_counts(submission: Submission, spec: RunSpec) -> None:
    """Check the signed counts and size against the spec. Raises Reject."""
    groups = spec.sampling.groups_per_submission
    if submission.groups != groups or submission.completions != groups * spec.sampling.group_size:
        raise Reject(Reason.WRONG_COUNTS)
    if submission.size > spec.checks.max_blob:
        raise Reject(Reason.BLOB_TOO_LARGE, f"{submission.size} bytes")


def check_policy(submission: Submission, *, committed: str | None, async_level: int) -> None:
    """Check that the policy is the committed checkpoint and lies in the window of the submission's own step, never the
    head's. Raises Reject, or Ignore while the commit has not been seen."""
    if submission.policy_step not in policy_window(submission.step, async_level):
        raise Reject(Reason.STALE_POLICY, f"policy {submission.policy_step} for step {submission.step}")
    if committed is None:
        raise Ignore(Reason.POLICY_UNCOMMITTED)
    if submission.policy != committed:
        raise Reject(Reason.WRONG_POLICY)


def check_open(submission: Submission, *, head: Head | None, opened: OpenStep | None) -> OpenStep:
    """Check that the leader has opened the step and that the index is below its limit. Raises Ignore."""
    if head is None or opened is None or submission.step > head.step:
        raise Ignore(Reason.UNKNOWN_STEP)
    if submission.index >= opened.limit:
        raise Ignore(Reason.OVER_LIMIT)
    return opened


def check_predecessor(submission: Submission, *, previous: int | None, known: Collection[str]) -> None:
    """Check that the predecessor is a known submission of the previous admitted index, or zeros for the first index.
    Raises Ignore, because the gap may close later."""
    expected = (ZERO_DIGEST,) if previous is None else known
    if submission.predecessor not in expected:
        raise Ignore(Reason.GAP)


def check_timing(submission: Submission, *, head: Head, async_level: int, vouched: bool) -> None:
    """Check that the submission was first seen while head.step <= step + async_level. A submission that another
    validator has already accepted is never late. Raises Ignore."""
    if head.step > submission.step + async_level and not vouched:
        raise Ignore(Reason.LATE)
