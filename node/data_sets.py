"""Data sets of a run's tasks. The run's draft names files, its spec their digests. Nodes find them beside the spec or
at the run's relays, which keep them for as long as they serve the run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from dht.disk import make_folder, write_durably
from node.errors import ConfigError
from node.relay_book import RelayBook
from node.running import patiently
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec
from roles.tasks.problems import MAX_FILE

if TYPE_CHECKING:
    from roles.tasks import Task

FOLDER = "tasks"
"""Folder name, beside a spec and in a node's data folder."""

log = structlog.get_logger()


def digests_of(spec: RunSpec) -> tuple[str, ...]:
    """Digests of the data sets that the run's tasks need."""
    named = (task.parameters.get("data") for task in spec.tasks)
    return tuple(dict.fromkeys(digest for digest in named if isinstance(digest, str)))


Get = Callable[[str, int], Awaitable[bytes]]
"""Fetches the bytes with a digest, up to a maximum size."""


def from_relays(client: RelayClient, book: RelayBook) -> Get:
    """Fetch from the run's relays. They are looked up on each call, because a node that has the
    spec from a file knows none yet."""

    async def get(digest: str, most: int) -> bytes:
        await book.refresh()
        return await client.get(digest, limit=most)

    return get


async def find_data_sets(spec: RunSpec, *, home: Path, beside: Path | None, get: Get) -> None:
    """Put every data set of the run into `home`, from the spec file's folder or by `get`. Raises ConfigError."""
    for digest in digests_of(spec):
        place = home / FOLDER / digest
        if await asyncio.to_thread(_is_here, place, digest, beside):
            continue

        async def attempt(digest: str = digest) -> bytes:
            return await get(digest, MAX_FILE)

        hint = f"no relay has the data set {digest[:12]}.. of this run; its operator's relays start beside it (docs/operate.md)"
        keep_file(place, await patiently(attempt, event="data_set.not_found_yet", hint=hint))
        log.info("data_set.fetched", digest=digest, size=place.stat().st_size)


def _is_here(place: Path, digest: str, spec_file: Path | None) -> bool:
    """Whether the data set is in place, after copying it from beside the spec file if it is there."""
    if _is_whole(place, digest):
        return True
    near = spec_file.expanduser().parent / FOLDER / digest if spec_file else place
    if not _is_whole(near, digest):
        return False
    keep_file(place, near.read_bytes())
    return True


def place_data_set(path: Path, folder: Path) -> str:
    """Copy a data set into a folder under its digest. Returns the digest. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{path}: a data set may have {MAX_FILE >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the data set {path}: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    keep_file(folder / digest, data)
    return digest


def keep_file(path: Path, data: bytes) -> None:
    """Write a file atomically, creating its folder."""
    make_folder(path.parent)
    write_durably(path, data)


def load_run_tasks(spec: RunSpec, home: Path) -> Task:
    """The run's tasks combined into one, with data sets from `home`. Also loads the tool, so that a node without it
    does not join. Raises ConfigError."""
    from roles.tasks import TaskError, load_tasks
    from roles.turns.tool import load_tool_use

    try:
        load_tool_use(spec.tool)
        return load_tasks(spec.tasks, home / FOLDER)
    except TaskError as error:
        raise ConfigError(str(error)) from error


def held_files(spec: RunSpec, home: Path) -> Sequence[Path]:
    """Paths of the data sets in `home`."""
    return [home / FOLDER / digest for digest in digests_of(spec)]


def _is_whole(path: Path, digest: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False
