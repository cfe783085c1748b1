"""Which part of a completion is judged."""

from __future__ import annotations

MAX_COMPLETION_CHARS = 400_000
KEPT_CHARS = 16_000
"""The end, where the answer is: more only costs time."""


def answer_part(completion: str) -> str:
    """The end of what follows `</think>` (INTELLECT-2, section 3.1). A text that never stops thinking has no answer."""
    if len(completion) > MAX_COMPLETION_CHARS:
        return ""
    _, mark, said = completion.rpartition("</think>")
    if not mark and "<think>" in completion:
        return ""
    return said[-KEPT_CHARS:]
