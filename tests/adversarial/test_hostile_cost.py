"""What a hostile file costs a validator: no forward pass, little time, and no more
memory than an honest file may need."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.testnet.adversaries import hostile_files
from roles.inference.engine import Completion, Engine, Pair, Prefill, Request, SamplingSettings
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile, write_rollouts
from roles.rules import Reason
from roles.verification import Finding, Verifier
from roles.worker.generation import Made
from tests.builders import WORKERS, World, make_rollouts, make_world, open_rollouts, repack, shared_engine

SECONDS = 2.0
"""Limit of CPU seconds for one file; usually it takes a tenth of this."""
HONEST_COPIES = 8
"""Memory limit in copies of the largest honest file: Python's and Arrow's objects take a few times its bytes."""


class RestingEngine:
    """Encodes and decodes, but runs no model: the test fails if it is asked to."""

    def __init__(self) -> None:
        real = shared_engine()
        self.eos, self.vocabulary = real.eos, real.vocabulary
        self.encode, self.decode = real.encode, real.decode

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        raise AssertionError("a validator does not generate")

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        raise AssertionError("a forward pass was spent on it")

    def load(self, checkpoint: object) -> None:
        raise AssertionError("weights were loaded for it")


def long_text(file: RolloutFile) -> bytes:
    """A run's id of two megabytes."""
    return write_rollouts(replace(file, run="ab" * 2**20))


def long_prompt(file: RolloutFile) -> bytes:
    return write_rollouts(replace(file, rows=(replace(file.rows[0], prompt=(1,) * 10_000), *file.rows[1:])))


def long_output(file: RolloutFile) -> bytes:
    row = replace(file.rows[0], output=(1,) * 10_000, output_logprobs=None)
    return write_rollouts(replace(file, rows=(row, *file.rows[1:])))


def other_prompt(file: RolloutFile) -> bytes:
    """Within every bound, but not the assigned prompt: nothing is computed on a prompt of the file's choice."""
    return write_rollouts(replace(file, rows=(replace(file.rows[0], prompt=(1,) * 64), *file.rows[1:])))


def one_huge_page(file: RolloutFile) -> bytes:
    """A column of 240 MB in one page of a few kilobytes. The footer may claim
    anything; page headers are what counts."""
    table = pq.read_table(io.BytesIO(write_rollouts(file)))
    zeros = pa.array([bytes(30 * 2**20)] * table.num_rows, pa.binary())
    column = table.schema.get_field_index("proof")
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        data_page_size=2**30,
    ) as writer:
        writer.write_table(table.set_column(column, table.schema.field(column), zeros))
    return sink.getvalue()


FILES: dict[str, tuple[Callable[[RolloutFile], bytes], Reason]] = {
    "cut": (hostile_files.cut, Reason.SCHEMA),
    "zeros": (hostile_files.zeros, Reason.SCHEMA),
    "levels": (hostile_files.levels, Reason.SCHEMA),
    "dictionary": (hostile_files.dictionary, Reason.SCHEMA),
    "nested": (hostile_files.nested, Reason.SCHEMA),
    "million_columns": (hostile_files.million_columns, Reason.SCHEMA),
    "endless_list": (hostile_files.endless_list, Reason.SCHEMA),
    "huge_page": (one_huge_page, Reason.SCHEMA),
    "long_text": (long_text, Reason.SCHEMA),
    "long_prompt": (long_prompt, Reason.SCHEMA),
    "long_output": (long_output, Reason.SCHEMA),
    "other_prompt": (other_prompt, Reason.WRONG_PROMPT),
}


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def honest(world: World) -> Made:
    return make_rollouts(world)


@pytest.mark.parametrize("name", FILES)
def test_judge__hostile_file_costs_little_and_no_forward_pass(world: World, honest: Made, name: str) -> None:
    build, reason = FILES[name]
    file = open_rollouts(world, honest)
    data = build(file)
    tokens = None if name not in ("long_output", "other_prompt") else sum(len(row.output) for row in file.rows)
    hostile = repack(honest, data, **({} if tokens is None else {"tokens": tokens}))
    limits = rollout_limits(world.spec, world.engine.vocabulary)
    found, seconds, peak = judged(world, hostile)
    assert (found.outcome, found.reason) == ("fault", reason)
    assert found.detail
    assert seconds < SECONDS
    assert peak < HONEST_COPIES * limits.max_uncompressed + len(data) + 2**20, peak


def judged(world: World, made: Made) -> tuple[Finding, float, int]:
    """The finding, the CPU seconds, and the peak memory of Python and Arrow."""
    engine: Engine = RestingEngine()
    verifier = Verifier(spec=world.spec, engine=engine, task=world.task)
    arrow = pa.default_memory_pool().max_memory() or 0
    tracemalloc.start()
    began = time.process_time()
    try:
        found = verifier.judge(made.submission, seed=world.seed(WORKERS[0]), data=made.blob)
        seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return found, seconds, peak + max(0, (pa.default_memory_pool().max_memory() or 0) - arrow)
