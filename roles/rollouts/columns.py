"""The columns of a rollout file: `rollouts/1`, and `rollouts/2`, with one more, for runs
whose policy may call a tool."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

FILE_COLUMNS = ("run", "node", "step", "policy", "policy_step", "index")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


SCHEMA = pa.schema(
    [
        _required("run", pa.string()),
        _required("node", pa.string()),
        _required("step", pa.int64()),
        _required("policy", pa.string()),
        _required("policy_step", pa.int64()),
        _required("index", pa.int64()),
        _required("group", pa.int32()),
        _required("problem_id", pa.int64()),
        _required("prompt_tokens", _list_of(pa.int32())),
        _required("output_tokens", _list_of(pa.int32())),
        _required("reward", pa.float32()),
        _required("seed", pa.int64()),
        _required("temperature", pa.float32()),
        _required("finish_reason", pa.string()),
        _required("proof", pa.binary()),
        pa.field("output_logprobs", _list_of(pa.float32())),
        pa.field("target_length", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A version of the schema. `rows` are the columns that vary between rows, in the order of `RolloutRow`'s fields."""

    version: str
    schema: pa.Schema

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(name for name in self.schema.names if name not in FILE_COLUMNS)


PLAIN = Layout("rollouts/1", SCHEMA)
IN_TURNS = Layout("rollouts/2", SCHEMA.append(_required("turns", _list_of(pa.int32()))))
