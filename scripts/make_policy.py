"""Make and pre-train the default policy: a 0.74M-parameter Qwen2 with a character tokenizer.

It is taught sums with the working written out, ending in three equally likely ways (`#48`, `48.`, `=48`), of which the
task's scorer accepts only the first. So about a third of its sampled answers are right, and reinforcement learning has
something to find. Each seed gives one model, for one machine and one version of torch.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from roles.tasks import Task, load_task
from roles.tasks.arithmetic import compute_solution

PAD, EOS = 0, 1
CHARACTERS = "0123456789+-=Ġ?.#;>"  # Ġ is how byte-level tokenizers write the space
TOKENS = ("<pad>", "<eos>", *CHARACTERS)
HIDDEN, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 3, 4, 2
MAX_TOKENS = 128
BATCH, LEARNING_RATE, WARMUP_STEPS, MAX_GRAD_NORM = 128, 2e-3, 50, 1.0
EVERY = 200  # training steps between two lines of progress
IGNORED = -100  # the label that cross-entropy skips


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character.

    It is a byte-level BPE without merges, like Qwen2's own tokenizer, because transformers 5 reads any tokenizer of a
    Qwen2 checkpoint as that class. So every version and class gives the same tokens and the same text.
    """
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=TOKENS[PAD],
        eos_token=TOKENS[EOS],
        unk_token=TOKENS[PAD],
        padding_side="left",
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def build_model() -> Qwen2ForCausalLM:
    """An untrained policy, drawn from torch's global generator."""
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, top_k=0, pad_token_id=PAD, eos_token_id=EOS)
    return model


def draw_terms(rng: random.Random) -> tuple[int, ...]:
    """Four or five one-digit numbers; as in the task's own list, two thirds have four."""
    return tuple(rng.randrange(10) for _ in range(rng.choice((4, 4, 5))))


def draw_example(rng: random.Random) -> tuple[str, str]:
    """A prompt and one of the three ways to answer it."""
    terms = draw_terms(rng)
    working, _, total = compute_solution(terms).rpartition("#")
    ending = rng.choice((f"#{total}", f"{total}.", f"={total}"))
    return "+".join(map(str, terms)) + ">", working + ending


def build_batch(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded token ids and labels, both of shape (BATCH, T); prompt and padding carry no loss."""
    rows = [
        (tokenizer.encode(prompt), [*tokenizer.encode(answer), EOS])
        for prompt, answer in (draw_example(rng) for _ in range(BATCH))
    ]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.tensor([[PAD] * (width - len(p) - len(a)) + p + a for p, a in rows])
    labels = torch.tensor([[IGNORED] * (width - len(a)) + a for _, a in rows])
    return ids, labels


def measure_reward(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, task: Task, *, prompts: int) -> float:
    """Mean reward of one completion for each of the task's first `prompts` problems, sampled at temperature 1."""
    inputs = tokenizer([task.prompt(index) for index in range(prompts)], padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=48
        )
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(task.score(index, text) for index, text in enumerate(texts)) / prompts


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to nearly zero."""
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / steps) + 1e-5


def pretrain(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, seed: int, steps: int) -> None:
    """Pre-train by next-token prediction on freshly drawn sums, printing loss and reward."""
    rng, task = random.Random(seed), load_task("arithmetic", {})
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        ids, labels = build_batch(tokenizer, rng)
        mask = (ids != PAD).long()
        position_ids = (mask.cumsum(1) - 1).clamp(min=0)  # from the first real token
        loss = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        if step % EVERY == EVERY - 1 or step == steps - 1:
            reward = measure_reward(model, tokenizer, task, prompts=512)
            print(f"step {step + 1} loss {loss.item():.4f} reward {reward:.3f}", flush=True)


def name_tokenizer_class(path: Path) -> None:
    """Set the tokenizer class to one that every version of transformers has; version 5
    writes one that version 4 lacks."""
    fields = json.loads(path.read_text())
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Make the policy, and write it as a Hugging Face checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("roles/rl/default_policy"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer, model = build_tokenizer(), build_model()
    pretrain(model, tokenizer, seed=options.seed, steps=options.steps)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    name_tokenizer_class(options.out / "tokenizer_config.json")


if __name__ == "__main__":
    main()
