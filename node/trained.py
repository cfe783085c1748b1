"""What a run has trained, as a folder that transformers can load."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dht.disk import sync
from dht.errors import TransportError
from ledger.records import Commit
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.visitor import Visit


async def fetch_trained(
    visit: Visit, out: Path, *, step: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Commit:
    """Fetch a committed checkpoint, by default the newest, into a new folder. Repeating it resumes a fetch that was
    killed. Raises ConfigError, StoreFull."""
    commit = pick_commit(await visit.ledger.commits(), step)
    part = out.with_name(f".{out.name}.part")
    try:
        folder = await visit.relays.fetch_checkpoint(commit.manifest, part, progress=progress, is_durable=True)
    except TransportError as error:
        raise ConfigError(
            f"checkpoint {commit.step} cannot be had: {error}; relays keep the newest ones, archives all (--archive)"
        ) from error
    folder.rename(out)
    sync(out.parent)
    shutil.rmtree(part)
    return commit


def pick_commit(commits: Sequence[Commit], step: int | None) -> Commit:
    """The commit of a step, or the newest. Raises ConfigError."""
    if not commits:
        raise ConfigError("the run has committed no checkpoint yet")
    found = [commit for commit in commits if step in (None, commit.step)]
    if not found:
        raise ConfigError(f"the run has no checkpoint {step}; they go from 0, the base model, to {commits[-1].step}")
    return found[-1]


def new_folder(path: Path) -> Path:
    """Check the destination of a checkpoint. Raises ConfigError if it exists already or cannot be written."""
    out = path.expanduser()
    if out.exists():
        raise ConfigError(f"{out} exists already; name another folder, or move that one away")
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {out.absolute().parent}: {error.strerror}") from error
    return out.absolute()
