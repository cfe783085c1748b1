"""A worker's own submissions on disk, written before they are announced and read first after a restart.

`submissions/{step}/{index}.parquet`, then `{index}.json` (its existence means that both are whole), then
`{index}.relays` once relays hold the blob. A row is announced only after that last mark, so without it
nobody has seen the index.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import structlog

from dht.disk import make_folder, write_durably
from dht.encoding import decode, encode, sha256
from dht.errors import Malformed
from roles.messages import Submission
from roles.worker.generation import Made, submission_digest

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Kept:
    """A submission as stored on disk; `relays` is None until its blob has been uploaded."""

    submission: Submission
    digest: str
    relays: tuple[str, ...] | None


class SubmissionStore:
    """Blocking calls, to be run in a thread. They raise OSError when the disk fails."""

    def __init__(self, root: Path) -> None:
        self._root = root / "submissions"
        make_folder(self._root)

    def save(self, made: Made) -> None:
        """Write the blob first, then the submission that names it."""
        folder = self._folder(made.submission.step)
        make_folder(folder)
        write_durably(folder / f"{made.submission.index}.parquet", made.blob)
        write_durably(folder / f"{made.submission.index}.json", encode(made.submission))

    def mark_uploaded(self, submission: Submission, relays: tuple[str, ...]) -> None:
        """Remember which relays hold the blob; from here on the row may have been seen."""
        write_durably(self._folder(submission.step) / f"{submission.index}.relays", ",".join(relays).encode())

    def blob(self, submission: Submission) -> bytes:
        """The blob's bytes. Raises OSError."""
        return (self._folder(submission.step) / f"{submission.index}.parquet").read_bytes()

    def load(self) -> list[Kept]:
        """All stored submissions, by step and index. A damaged one that nobody can have seen is
        dropped, to be made anew."""
        kept = [self._load_one(path) for path in self._root.glob("*/*.json")]
        return sorted((item for item in kept if item), key=lambda item: (item.submission.step, item.submission.index))

    def prune(self, before: int) -> None:
        """Delete the submissions of steps below `before`."""
        for folder in self._root.iterdir():
            if folder.name.isdigit() and int(folder.name) < before:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, step: int) -> Path:
        return self._root / str(step)

    def _load_one(self, path: Path) -> Kept | None:
        relays = _marked(path.with_suffix(".relays"))
        try:
            submission = decode(Submission, path.read_bytes())
            if relays is None and sha256(self.blob(submission)) != submission.blob:
                raise Malformed("the blob is not the one signed")
        except (Malformed, OSError) as error:
            log.warning("submission.damaged", path=str(path), why=str(error))
            if relays is None:
                path.unlink(missing_ok=True)
            return None
        return Kept(submission, submission_digest(submission), relays)


def _marked(mark: Path) -> tuple[str, ...] | None:
    """The relays that a mark names: None when there is no mark, empty for a damaged one, since
    its row may have been seen."""
    if not mark.exists():
        return None
    try:
        return tuple(filter(None, mark.read_text().split(",")))
    except (OSError, UnicodeDecodeError) as error:
        log.warning("submission.mark_damaged", path=str(mark), why=str(error))
        return ()
