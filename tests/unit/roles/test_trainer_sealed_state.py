"""The trainer's state, sealed to the run's trainers: each can read all of it, nobody else
can, and it cannot be altered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dht.encoding import encode, sha256
from dht.errors import Malformed
from dht.identity import NodeKey
from roles.messages import StateRef
from roles.trainer.sealed_state import StateIndex, StateOpener, open_state, read_index, seal_state
from tests.builders import STRANGER, TRAINER, node_key

RUN, SECOND, STATE = "ab" * 32, node_key(2), bytes(range(256)) * 10


def seal(folder: Path, state: bytes = STATE, *, step: int = 5) -> tuple[StateRef, StateIndex, list[bytes]]:
    """A state of 2,560 bytes in three pieces, for two trainers."""
    (folder / "state").write_bytes(state)
    trainers = [TRAINER.node, SECOND.node]
    ref = seal_state(folder / "state", folder / "sealed", run=RUN, step=step, trainers=trainers, piece=1024)
    index = read_index((folder / "sealed" / ref.index).read_bytes(), run=RUN, step=step)
    return ref, index, [(folder / "sealed" / digest).read_bytes() for digest in index.pieces]


def opened(folder: Path, pieces: Sequence[bytes], index: StateIndex, key: NodeKey) -> bytes:
    open_state(pieces, folder / "opened", index=index, key=key)
    return (folder / "opened").read_bytes()


@pytest.mark.parametrize("state", [STATE, b"x", bytes(1024), bytes(2048)])
@pytest.mark.parametrize("key", [TRAINER, SECOND])
def test_open_state__every_trainer_reads_it(tmp_path: Path, key: NodeKey, state: bytes) -> None:
    ref, index, pieces = seal(tmp_path, state)
    assert [sha256(piece) for piece in pieces] == list(index.pieces)
    assert ref.size == len(encode(index))
    assert opened(tmp_path, pieces, index, key) == state
    assert state not in b"".join(pieces) or len(state) == 1


def test_open_state__nobody_else(tmp_path: Path) -> None:
    _, index, pieces = seal(tmp_path)
    with pytest.raises(Malformed, match="not sealed to this node"):
        opened(tmp_path, pieces, index, STRANGER)
    stolen = index.model_copy(
        update={"keys": tuple(k.model_copy(update={"node": STRANGER.node}) for k in index.keys[:1])}
    )
    with pytest.raises(Malformed, match="not sealed to this node"):
        opened(tmp_path, pieces, stolen, STRANGER)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pieces: pieces[:-1],
        lambda pieces: [pieces[1], pieces[0], pieces[2]],
        lambda pieces: [pieces[0], pieces[1], pieces[1]],
        lambda pieces: [*pieces[:2], pieces[2][:-1] + bytes([pieces[2][-1] ^ 1])],
        lambda pieces: [*pieces[:2], b""],
    ],
)
def test_open_state__changed_pieces_leave_nothing(tmp_path: Path, spoil: object) -> None:
    _, index, pieces = seal(tmp_path)
    spoilt: list[bytes] = spoil(pieces)  # type: ignore[operator]
    with pytest.raises(Malformed):
        opened(tmp_path, spoilt, index.model_copy(update={"pieces": index.pieces[: len(spoilt)]}), TRAINER)
    assert not (tmp_path / "opened").exists()


def test_open_state__pieces_of_another_step_do_not_belong(tmp_path: Path) -> None:
    _, index, _ = seal(tmp_path)
    (tmp_path / "other").mkdir()
    _, _, others = seal(tmp_path / "other", step=10)
    with pytest.raises(Malformed, match="does not belong"):
        StateOpener(index, TRAINER).open(others[0])


def test_read_index__of_another_run_or_step(tmp_path: Path) -> None:
    _, index, _ = seal(tmp_path)
    for run, step in (("cd" * 32, 5), (RUN, 6)):
        with pytest.raises(Malformed, match="another run or step"):
            read_index(encode(index), run=run, step=step)


def test_seal_state__sealing_again_leaves_no_pieces_of_before(tmp_path: Path) -> None:
    seal(tmp_path)
    _, index, _ = seal(tmp_path)
    assert len(list((tmp_path / "sealed").iterdir())) == len(index.pieces) + 1
