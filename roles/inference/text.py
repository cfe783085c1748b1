"""Text to tokens and back, the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def encode_text(tokenizer: Any, text: str, *, chat: bool) -> tuple[int, ...]:
    """Token ids, without special tokens. With `chat` the text is the user's message in the
    tokenizer's chat template."""
    if chat:
        said = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def decode_tokens(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Text, without special tokens."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))
