"""A random tiny Qwen2 with a character tokenizer, written as a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

ALPHABET = "0123456789+-=>;#. "
EOS = len(ALPHABET) + 1


def write_tiny_policy(
    folder: Path, *, seed: int = 0, hidden: int = 128, scale: float = 4.0, dtype: torch.dtype = torch.float32
) -> Path:
    """Vocabulary: <pad>, the alphabet, <eos>. `scale` sharpens the logits, as training would."""
    model = make_tiny_model(seed=seed, hidden=hidden, scale=scale)
    model.to(dtype).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tiny_model(*, seed: int = 0, hidden: int = 128, scale: float = 4.0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=EOS + 1,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=EOS,
        pad_token_id=0,
        bos_token_id=None,
    )
    model: Qwen2ForCausalLM = Qwen2ForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
    return model


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, **{c: i + 1 for i, c in enumerate(ALPHABET)}, "<eos>": EOS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
