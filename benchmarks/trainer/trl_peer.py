"""TRL's side, in a Python of its own: `PYTHON trl_peer.py CASE`. Prints one line of JSON.

`GRPOTrainer` is built as its users build it, and given the tensors that it would make of the batch itself: completions
padded to the longest of the batch, split into passes by its own functions. The time covers its `training_step` for each
pass, clipping and its optimizer: no generation, no data loader.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad, split_tensor_dict

from benchmarks.trainer.case import BETAS, DELTA, EPS, LEARNING_RATE, MAX_GRAD_NORM, Case


def main(path: Path) -> None:
    """Make the updates, and report the time of each."""
    warnings.filterwarnings("ignore")
    case = Case.load(path)
    torch.set_num_threads(case.threads)
    trainer = build_trainer(case)
    passes = build_passes(case)
    # the state after it has generated a batch, with many updates to come before the next
    trainer._buffered_inputs, trainer._step, trainer.num_iterations = passes, len(passes), 10**9
    loaded = peak_mib()
    said = [update(trainer, passes) for _ in range(case.steps)]
    print(json.dumps({"updates": said, "loaded_mib": loaded, "peak_mib": peak_mib()}))


def build_trainer(case: Case) -> Any:
    """The trainer on a CPU in fp32, two-sided, normalised by tokens, without a reference model."""
    passes = len(case.lines) // case.rows
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=case.rows,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_generations=2,
        max_completion_length=case.longest,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        beta=0.0,
        epsilon=EPS,
        delta=DELTA,
        loss_type="dapo",
        temperature=1.0,
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a")),  # noqa: S106 - no password
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * len(case.lines)}),
        processing_class=tokenizer,
    )
    trainer.create_optimizer()
    trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped.train()
    trainer.current_gradient_accumulation_steps = passes
    return trainer


def build_passes(case: Case) -> list[dict[str, Any]]:
    """The batch in the form that `_generate_and_score_completions` returns, split as in `_prepare_inputs`."""
    prompts = [torch.tensor(line.prompt) for line in case.lines]
    completions = [torch.tensor(line.completion) for line in case.lines]
    whole = {
        "prompt_ids": pad(prompts, padding_value=0, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], padding_value=0, padding_side="left"),
        "completion_ids": pad(completions, padding_value=0, padding_side="right"),
        "completion_mask": pad([torch.ones_like(ids) for ids in completions], padding_value=0, padding_side="right"),
        "advantages": torch.tensor([line.advantage for line in case.lines]),
        "old_per_token_logps": pad([torch.tensor(line.old) for line in case.lines], padding_value=0.0),
        "num_items_in_batch": torch.tensor(float(sum(len(line.completion) for line in case.lines))),
    }
    passes: list[dict[str, Any]] = split_tensor_dict(whole, len(case.lines) // case.rows)
    return passes


def update(trainer: Any, passes: list[dict[str, Any]]) -> dict[str, float]:
    """One optimizer step."""
    began, worked = time.perf_counter(), time.process_time()
    loss = 0.0
    for inputs in passes:
        loss += float(trainer.training_step(trainer.model_wrapped, inputs, inputs["num_items_in_batch"]))
    norm = float(trainer.accelerator.clip_grad_norm_(trainer.model_wrapped.parameters(), MAX_GRAD_NORM))
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    return {"loss": loss, "grad_norm": norm, "seconds": seconds, "worked": worked}


def peak_mib() -> int:
    """Largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
