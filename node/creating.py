"""Creates a run on a ledger in steps that can be killed and repeated: contract, spec, entry on the contract.

Finished steps are recorded in a folder beside the spec until all are done. A second attempt resumes where the first
ended: it deploys nothing twice and pays for nothing twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dht.disk import make_folder, write_durably
from dht.encoding import encode, sha256
from ledger.client import LedgerClient
from ledger.deployment import built_code_hash, deploy
from ledger.errors import LedgerMismatch
from ledger.policy import GWEI, ChainPolicy
from ledger.rpc import Rpc
from ledger.wallet import address_of
from node.data_sets import FOLDER
from node.defaults import MAX_FEE_GWEI
from node.errors import ConfigError, UsageError
from node.ledger_access import default_policy
from node.run_creation import NOWHERE, ChainPlace, build_spec, draft_table
from roles.run_terms import terms_of
from roles.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Wish:
    """The run to create: its draft and model, the path of its spec, and who pays at which end-points."""

    draft: dict[str, Any]
    model: Path
    spec: Path
    urls: Sequence[str]
    key: bytes
    contract: str | None = None
    max_fee_gwei: int = MAX_FEE_GWEI

    @property
    def folder(self) -> Path:
        """Folder that records the finished steps until all are done."""
        return self.spec.with_name(f"{self.spec.name}.creating")


async def create(wish: Wish) -> RunSpec:
    """Create the run, and return its spec once it is on the ledger. Can be repeated to resume.
    Raises ConfigError, LedgerError."""
    build_spec(wish.draft, model=wish.model, place=NOWHERE)  # report errors in the draft before gas is spent
    _begin(wish)
    policy = await _policy(wish)
    place, data_sets = await _place(wish, policy), wish.spec.parent / FOLDER
    spec = build_spec(wish.draft, model=wish.model, place=place, data_sets=data_sets)
    _write_spec(wish.spec, encode(spec))
    async with await LedgerClient.connect(
        wish.urls,
        contract=spec.ledger.contract,
        operator_key=wish.key,
        state_dir=wish.folder,
        chain_id=spec.ledger.chain_id,
        code_hash=spec.ledger.code_hash,
        deployment_block=spec.ledger.deployment_block_hash,
        policy=policy,
    ) as ledger:
        await ledger.create_run(**terms_of(spec))
    _end(wish)
    return spec


def _begin(wish: Wish) -> None:
    """Refuse to overwrite another run's spec, and record which draft and owner the folder
    belongs to. Raises ConfigError."""
    wanted = {"draft": sha256(json.dumps(wish.draft, sort_keys=True).encode()), "owner": address_of(wish.key)}
    note = wish.folder / "wish.json"
    if _is_begun(wish.folder):
        if _noted(note) != wanted:
            raise ConfigError(
                f"{wish.folder} holds the beginnings of another run (another draft or key): finish that one with them, "
                "or remove the folder"
            )
        return
    if wish.spec.exists():
        raise ConfigError(f"{wish.spec} exists already; name another file by --spec, or move that one away")
    try:
        make_folder(wish.folder)
    except OSError as error:
        raise ConfigError(f"cannot write beside {wish.spec}: {error.strerror}; name another file by --spec") from error
    _write(note, json.dumps(wanted).encode())


def _is_begun(folder: Path) -> bool:
    """Whether something in the folder has cost gas, or is about to."""
    return any(path.suffix in (".json", ".deployed") and path.name != "wish.json" for path in folder.glob("*"))


def _end(wish: Wish) -> None:
    """Remove the folder in one step, so that a kill leaves nothing that looks like an unfinished run."""
    done = wish.folder.with_name(f".{wish.folder.name}.done")
    shutil.rmtree(done, ignore_errors=True)
    wish.folder.rename(done)
    shutil.rmtree(done)


def _noted(note: Path) -> dict[str, Any] | None:
    """A note's content; None without one, or when it is damaged, in which case it is determined again."""
    try:
        said = json.loads(note.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return said if isinstance(said, dict) else None


async def _policy(wish: Wish) -> ChainPolicy:
    rpc = Rpc(wish.urls)
    try:
        chain_id, _ = await rpc.connect()
    finally:
        await rpc.close()
    return replace(default_policy(chain_id), max_fee=wish.max_fee_gwei * GWEI)


async def _place(wish: Wish, policy: ChainPolicy) -> ChainPlace:
    """The contract to use: the one named, the one deployed before, or a new one."""
    note = wish.folder / "place.json"
    with suppress(TypeError):  # other fields: damaged
        if noted := _noted(note):
            return ChainPlace(**noted)
    place = await (_named(wish) if wish.contract else _deployed(wish, policy))
    _write(note, json.dumps(asdict(place)).encode())
    return place


async def _deployed(wish: Wish, policy: ChainPolicy) -> ChainPlace:
    made = await deploy(wish.urls[0], wish.key, state_dir=wish.folder, policy=policy)
    return ChainPlace(made.chain_id, made.contract, made.code_hash, made.block_hash)


async def _named(wish: Wish) -> ChainPlace:
    block = draft_table(wish.draft, "ledger").get("deployment_block_hash")
    if block is None:
        raise UsageError(
            "with --contract the draft must state deployment_block_hash under [ledger]: the spec of another run of that "
            "contract has it (intellect-node run show --json)"
        )
    contract = str(wish.contract)
    async with await LedgerClient.connect(wish.urls, contract=contract, deployment_block=str(block)) as ledger:
        if ledger.code_hash != built_code_hash():
            raise LedgerMismatch(
                f"the code at {contract} is not this version's contract: leave out --contract to deploy one, or use the "
                "version it was deployed by"
            )
        return ChainPlace(ledger.domain.chain_id, ledger.domain.contract, ledger.code_hash, str(block))


def _write_spec(path: Path, data: bytes) -> None:
    """Write the spec. Raises ConfigError where another spec exists."""
    if path.exists():
        if path.read_bytes() != data:
            raise ConfigError(f"{path} changed while its run was being created: move it away, then type this again")
        return
    _write(path, data)


def _write(path: Path, data: bytes) -> None:
    """Write the file durably. Raises ConfigError."""
    try:
        write_durably(path, data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file by --spec") from error
