"""The commands that move money, run against a development chain: their output, and the ledger afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from ledger.accounts import devnet_accounts
from ledger.client import LedgerClient
from ledger.deployment import deploy
from ledger.devnet import running_devnet
from ledger.errors import LedgerError, LedgerMismatch, LedgerRejected, LowBalance
from ledger.keystore import save_key
from ledger.records import Operator, Strike
from ledger.wallet import address_of
from node.base_model import default_model
from node.cli import command_of
from node.creating import Wish, create
from node.errors import ConfigError, UsageError
from node.join import parse_join
from node.run_creation import build_spec, read_draft
from roles.run_terms import terms_of
from roles.spec import RunSpec
from tests.full_disk import no_file_larger

SEED = "money-commands"
OWNER, TRAINER, VALIDATOR, STRANGER, SPARE = devnet_accounts(5, SEED)
NODES = tuple(NodeKey(bytes([index]) * 32).node for index in range(1, 4))


def operator(key: bytes, node: str) -> dict[str, str]:
    return {"node": node, "operator": address_of(key), "payout": address_of(key)}


def make_draft(**changes: Any) -> dict[str, Any]:
    return {
        **read_draft(None),
        "quorum": 1,
        "validators": [operator(VALIDATOR, NODES[0])],
        "trainers": [operator(TRAINER, NODES[1])],
        "rewards": {"budget": "1000", "min_stake": "100"},
        "terms": {"unbond_seconds": 1, "change_seconds": 1},
        **changes,
    }


@pytest.fixture(scope="module")
def chain() -> Iterator[str]:
    """A development chain's URL. It runs in its own thread, because the commands run their own event loops."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with running_devnet(seed=SEED, block_seconds=1.0) as url:
            urls.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(30)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


@dataclass(frozen=True, slots=True)
class Desk:
    """A person's folder with keys, at the chain of a run."""

    folder: Path
    url: str
    capture: pytest.CaptureFixture[str]

    def type(self, *words: str) -> Any:
        """Run a command. Returns its JSON output if --json was given, otherwise its lines."""
        assert command_of(words[0])(list(words[1:])) == 0
        said = self.capture.readouterr().out
        return json.loads(said) if "--json" in words else said

    def pay(self, *words: str, key: bytes) -> Any:
        """The same, with the run's address and a paying key."""
        name = "--key" if words[0] == "run" else "--operator-key"
        return self.type(*words, *self.place(), name, str(self.key(key)))

    def place(self) -> tuple[str, ...]:
        return ("--spec", str(self.folder / "spec.json"), "--rpc", self.url, "--data", str(self.folder))

    def key(self, key: bytes) -> Path:
        path = self.folder / f"{address_of(key)}.key"
        if not path.exists():
            save_key(path, key)
        return path

    def node_key(self, name: str) -> tuple[Path, str]:
        path = self.folder / f"{name}.nkey"
        if not path.exists():
            NodeKey.generate().save(path)
        return path, NodeKey.load(path).node


@pytest.fixture(scope="module")
def spec(chain: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, bytes]:
    """A run on the chain, created once: each test pays from its own account or names its own node."""
    path = tmp_path_factory.mktemp("run") / "spec.json"
    wish = Wish(make_draft(), default_model(), path, [chain], OWNER)
    return asyncio.run(create(wish)), path.read_bytes()


@pytest.fixture
def desk(chain: str, spec: tuple[RunSpec, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    (tmp_path / "spec.json").write_bytes(spec[1])
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield Desk(tmp_path, chain, capsys)
    root.handlers[:], root.level = handlers, level


def test_run_fund__adds_up__chain_10(desk: Desk) -> None:  # CHAIN-10
    before = int(desk.type("run", "fund", *desk.place(), "--json")["funds"])
    desk.pay("run", "fund", "2000", key=STRANGER)
    answer = desk.pay("run", "fund", "1gwei", "--json", key=STRANGER)
    assert int(answer["funds"]) - before == 2000 + 10**9
    assert (answer["promised"], answer["paid"], answer["budget"]) == ("0", "0", "1000")
    with pytest.raises(UsageError, match="not an amount"):
        desk.pay("run", "fund", "1e18", key=STRANGER)
    with pytest.raises(ConfigError, match="name the key file"):
        desk.type("run", "fund", "5", *desk.place())


def test_run_show__every_address_given_is_in_the_join_string(desk: Desk) -> None:
    given = ("--peer", f"/ip4/203.0.113.1/tcp/4001/p2p/{NODES[0]}", "--relay", "http://relay.example:8080")
    said = desk.type("run", "show", *desk.place()[:4], *given)
    join = parse_join(next(line for line in said.splitlines() if line.startswith("join ")).removeprefix("join "))
    assert (join.peers, join.rpc, join.relays) == ((given[1],), (desk.url,), (given[3],))


def test_run_show__what_is_paid(desk: Desk) -> None:
    said = desk.type("run", "show", *desk.place()[:4])
    assert "rewards    1000 wei an epoch; a stake of 100 wei is asked" in said


def test_run_pause__only_the_owner_and_stakes_wait(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="only the account that created the run"):
        desk.pay("run", "pause", "on", key=STRANGER)
    assert desk.pay("run", "pause", "on", "--json", key=OWNER) == {"paused": True}
    with pytest.raises(ConfigError, match="only the account that created the run"):
        desk.pay("run", "pause", "on", key=STRANGER)  # though nothing would change
    with pytest.raises(ConfigError, match="the run's owner has stopped it"):
        desk.pay("stake", "500", "--node", NODES[2], key=STRANGER)
    assert desk.pay("run", "pause", "off", "--json", key=OWNER) == {"paused": False}


def test_stake_unbond_withdraw(desk: Desk) -> None:
    node, wallet = NODES[2], address_of(SPARE)
    with pytest.raises(ConfigError, match="minimum"):
        desk.pay("stake", "99", "--node", node, key=SPARE)
    desk.pay("stake", "100", "--node", node, "--wallet", wallet, key=STRANGER)
    held = desk.pay("stake", "400", "--node", node, "--json", key=SPARE)
    assert (held["wallet"], held["amount"], held["unbond_at"]) == (wallet, "500", None)
    assert "500 wei  bonded" in desk.type("stake", *desk.place())
    with pytest.raises(ConfigError, match="not free yet"):
        desk.pay("withdraw", "--node", node, key=SPARE)
    assert desk.pay("unbond", "--node", node, "--json", key=SPARE)["unbond_at"] > 0
    asyncio.run(_pass_time(desk.url, 2))
    assert desk.pay("withdraw", "--node", node, "--json", key=SPARE)["amount"] == "500"
    with pytest.raises(ConfigError, match="no stake behind that node"):
        desk.pay("unbond", "--node", node, key=SPARE)


def test_stake__from_an_empty_account(desk: Desk) -> None:
    with pytest.raises(LowBalance, match="holds 0 wei and needs"):
        desk.pay("stake", "500", "--node", NODES[2], key=bytes(31) + b"\x07")


def test_run_validators__announced_then_in_force(desk: Desk) -> None:
    table = "quorum = 1\n[[validators]]\n" + "".join(
        f'{name} = "{value}"\n' for name, value in operator(SPARE, NODES[2]).items()
    )
    (desk.folder / "set.toml").write_text(table)
    proposed = desk.pay("run", "validators", "propose", str(desk.folder / "set.toml"), "--json", key=OWNER)
    assert proposed["validators"][0]["node"] == NODES[0]
    assert proposed["waiting"]["validators"][0]["node"] == NODES[2]
    asyncio.run(_pass_time(desk.url, 2))
    applied = desk.pay("run", "validators", "apply", "--json", key=STRANGER)
    assert (applied["validators"][0]["node"], applied["waiting"]) == (NODES[2], None)
    with pytest.raises(ConfigError, match="run validators propose first"):
        desk.pay("run", "validators", "apply", key=STRANGER)
    (desk.folder / "set.toml").write_text("quorum = 1")
    with pytest.raises(ConfigError, match="must hold quorum"):
        desk.pay("run", "validators", "propose", str(desk.folder / "set.toml"), key=OWNER)


def test_strike__the_account_that_pays_is_named_as_for_run_too(desk: Desk) -> None:
    words = ("strike", "settle", "--node", NODES[2], *desk.place())
    with pytest.raises(ConfigError, match="no strike against that node is open"):
        desk.type(*words, "--key", str(desk.key(STRANGER)))


def test_keys_new__two_keys_at_once_are_not_made(desk: Desk) -> None:
    with pytest.raises(SystemExit, match="2"):
        desk.type("keys", "new", "--key", str(desk.folder / "n"), "--operator", str(desk.folder / "o"))
    assert not (desk.folder / "o").exists()


def test_run_upgrade__a_date_that_is_none_is_said_before_anybody_is_looked_for(desk: Desk) -> None:
    words = ("run", "upgrade", "0.3.0", "--from-step", "9", "--join", "ab" * 32, "--key", str(desk.key(OWNER)))
    with pytest.raises(UsageError, match="--by 'yesterday' is no time like 2027-01-31T12:00"):
        desk.type(*words, "--by", "yesterday")


def test_run_reclaim__not_before_the_end(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="only when the run has ended"):
        desk.pay("run", "reclaim", address_of(SPARE), key=OWNER)


def test_strike__nobody_was_struck(desk: Desk) -> None:
    assert desk.type("strike", "list", *desk.place(), "--json") == {"strikes": []}
    for words in (("settle",), ("dispute", "--evidence", str(desk.folder / "spec.json"))):
        with pytest.raises(ConfigError, match="no strike against that node is open"):
            desk.pay("strike", *words, "--node", NODES[2], key=STRANGER)
    with pytest.raises(ConfigError, match="neither a SHA-256 nor a file"):
        desk.pay("strike", "dispute", "--evidence", "nothing.txt", "--node", NODES[2], key=STRANGER)


@pytest.mark.parametrize("seconds", [1, 100_000])
def test_strike__answered_or_settled__chain_22(
    desk: Desk, spec: tuple[RunSpec, bytes], seconds: int
) -> None:  # CHAIN-22
    """After the window the stake is taken; during it a dispute is accepted."""
    place = spec[0].ledger
    draft = make_draft(
        name=f"struck {seconds}",
        terms={"dispute_seconds": seconds},
        ledger={"deployment_block_hash": place.deployment_block_hash},
    )
    (desk.folder / "spec.json").unlink()
    wish = Wish(draft, default_model(), desk.folder / "spec.json", [desk.url], OWNER, contract=place.contract)
    run = asyncio.run(create(wish)).run_id
    desk.pay("stake", "500", "--node", NODES[2], key=SPARE)
    asyncio.run(_strike(desk.url, place.contract, run))
    (held,) = desk.type("strike", "list", *desk.place(), "--json")["strikes"]
    assert (held["node"], held["wallet"], held["reason"], held["outcome"]) == (NODES[2], address_of(SPARE), 601, "open")
    if seconds > 1:
        answer = desk.folder / "answer.txt"
        answer.write_text("it was not me")
        with pytest.raises(ConfigError, match="only the wallet whose stake is at risk"):
            desk.pay("strike", "dispute", "--node", NODES[2], "--evidence", str(answer), key=STRANGER)
        said = desk.pay("strike", "dispute", "--node", NODES[2], "--evidence", str(answer), "--json", key=SPARE)
        assert said["counter_evidence"] == hashlib.sha256(b"it was not me").hexdigest()
        with pytest.raises(ConfigError, match="can still be answered or lifted"):
            desk.pay("strike", "settle", "--node", NODES[2], key=STRANGER)
        return
    asyncio.run(_pass_time(desk.url, 3))
    said = desk.pay("strike", "settle", "--node", NODES[2], "--json", key=STRANGER)
    assert (said["outcome"], said["slashed"]) == ("settled", "500")
    assert desk.type("run", "fund", *desk.place(), "--json")["funds"] == "500"
    with pytest.raises(ConfigError, match="was ejected"):
        desk.pay("stake", "500", "--node", NODES[2], key=SPARE)


async def _strike(url: str, contract: str, run: str) -> None:
    strike = Strike(run, NODES[2], address_of(SPARE), 0, 601, "ab" * 32)
    async with await LedgerClient.connect([url], contract=contract, run=run, operator_key=VALIDATOR) as ledger:
        await ledger.strike(strike, [await ledger.attest_strike(strike)])


def test_wallet_link__by_key_then_by_a_signature_made_elsewhere__key_03(desk: Desk) -> None:  # KEY-03
    path, node = desk.node_key("worker")
    link = ("wallet", "link", "--key", str(path))
    first = desk.pay(*link, "--wallet", str(desk.key(SPARE)), "--json", key=STRANGER)
    assert first == {"node": node, "wallet": address_of(SPARE)}
    other = address_of(OWNER)
    offer = desk.folder / "link.json"
    offer.write_text(desk.type(*link, *desk.place(), "--wallet", other))
    assert json.loads(offer.read_text())["message"]["nonce"] == 2
    signature = desk.type("wallet", "sign", str(offer), "--wallet", str(desk.key(OWNER))).strip()
    with pytest.raises(LedgerError, match="not a signature"):
        desk.pay(*link, "--wallet", other, "--signature", "0x1234", key=STRANGER)
    with pytest.raises(LedgerError, match=r"is not .*'s over what is to be signed now"):
        desk.pay(*link, "--wallet", address_of(TRAINER), "--signature", signature, key=STRANGER)
    linked = desk.pay(*link, "--wallet", other, "--signature", signature, "--json", key=STRANGER)
    assert linked == {"node": node, "wallet": other}
    assert "was linked before" in desk.pay(*link, "--wallet", other, key=STRANGER)
    unlinked = desk.pay("wallet", "unlink", "--key", str(path), "--json", key=STRANGER)
    assert unlinked == {"node": node, "wallet": None}


def test_wallet_sign__nothing_foreign__key_09(desk: Desk) -> None:  # KEY-09
    foreign = {
        "types": {"EIP712Domain": [], "Permit": []},
        "primaryType": "Permit",
        "domain": {"name": "Token", "version": "1"},
        "message": {"spender": "0x"},
    }
    for text in (json.dumps(foreign), "[]", "{", '{"primaryType": "Registration"}'):
        (desk.folder / "foreign.json").write_text(text)
        with pytest.raises(ConfigError, match="not what wallet link"):
            desk.type("wallet", "sign", str(desk.folder / "foreign.json"), "--wallet", str(desk.key(OWNER)))


def test_keys_rotate__by_the_old_key_then_by_the_wallet__key_01(desk: Desk) -> None:  # KEY-01
    old_path, old = desk.node_key("old")
    desk.pay("wallet", "link", "--key", str(old_path), "--wallet", str(desk.key(SPARE)), key=STRANGER)
    rotate = ("keys", "rotate", str(desk.folder / "new.nkey"), "--key", str(old_path))
    first = desk.pay(*rotate, "--json", key=STRANGER)
    assert first == {"old": old, "node": desk.node_key("new")[1]}
    assert "took its place before" in desk.pay(*rotate, key=STRANGER)
    lost = ("keys", "rotate", str(desk.folder / "newest.nkey"), "--old", first["node"])
    with pytest.raises(UsageError, match="its wallet must sign"):
        desk.pay(*lost, key=STRANGER)
    second = desk.pay(*lost, "--wallet", str(desk.key(SPARE)), "--json", key=STRANGER)
    held = asyncio.run(_registration(desk, second["node"]))
    assert (held.wallet, held.previous) == (address_of(SPARE), (old, first["node"]))
    with pytest.raises(ConfigError, match="not registered"):
        desk.pay(*rotate, "--old", NODES[2], key=STRANGER)


def test_keys_backup__restored_elsewhere__key_01(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:  # KEY-01
    path, node = desk.node_key("kept")
    backup, restored = str(desk.folder / "node.backup"), str(desk.folder / "restored.nkey")
    monkeypatch.setenv("INTELLECT_KEY_PASSWORD", "correct horse")
    desk.type("keys", "backup", backup, "--key", str(path))
    assert desk.type("keys", "restore", backup, "--key", restored, "--json")["node"] == node
    assert Path(restored).read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        desk.type("keys", "backup", backup, "--key", str(path))


def test_wallet_new__password_in_no_output(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_WALLET_PASSWORD", "correct horse battery")
    monkeypatch.setattr("sys.stdin", io.StringIO("0x" + OWNER.hex() + "\n"))
    wallet = desk.folder / "wallet.json"
    assert command_of("wallet")(["import", str(wallet), "--from", "-", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["address"] == address_of(OWNER)
    assert desk.type("wallet", "show", str(wallet), "--json")["encrypted"]
    assert "horse" not in said.out + said.err + wallet.read_text()
    assert OWNER.hex() not in said.out + said.err + wallet.read_text()


def test_keys_backup__a_disk_that_takes_no_more_leaves_no_half_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodeKey.generate().save(desk.folder / "node.nkey")
    monkeypatch.setenv("INTELLECT_KEY_PASSWORD", "correct horse")
    with no_file_larger(100), pytest.raises(OSError, match="too large"):
        desk.type("keys", "backup", str(desk.folder / "node.backup"), "--key", str(desk.folder / "node.nkey"))
    assert not (desk.folder / "node.backup").exists()


@pytest.mark.parametrize("stage", ["deployed", "placed", "written", "created"])
def test_create__killed_at_any_stage_goes_on__chain_05(chain: str, tmp_path: Path, stage: str) -> None:  # CHAIN-05
    """Each stage's remains on disk, then the same command again: nothing is deployed or created twice."""
    wish = Wish(make_draft(name=f"killed {stage}"), default_model(), tmp_path / "spec.json", [chain], SPARE)
    before = asyncio.run(_transactions(chain, SPARE))
    spec = asyncio.run(_begin_and_die(wish, stage))
    assert asyncio.run(create(wish)) == spec
    assert asyncio.run(_transactions(chain, SPARE)) - before == 2
    assert not wish.folder.exists()
    with pytest.raises(ConfigError, match="exists already"):
        asyncio.run(create(wish))


def test_create__killed_while_it_clears_up_is_done(chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = Wish(make_draft(name="killed at the end"), default_model(), tmp_path / "spec.json", [chain], SPARE)

    class Killed(BaseException):
        """Stands for the process's end."""

    def killed_halfway(folder: Path, **options: Any) -> None:
        if (Path(folder) / "wish.json").exists():
            (Path(folder) / "wish.json").unlink()
            raise Killed
        remove(folder, **options)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", killed_halfway)
    with pytest.raises(Killed):
        asyncio.run(create(wish))
    with pytest.raises(ConfigError, match=r"spec\.json exists already"):
        asyncio.run(create(wish))


def test_create__a_damaged_note_of_the_place_is_made_again(chain: str, tmp_path: Path) -> None:
    wish = Wish(make_draft(name="damaged note"), default_model(), tmp_path / "spec.json", [chain], SPARE)
    before = asyncio.run(_transactions(chain, SPARE))
    spec = asyncio.run(_begin_and_die(wish, "placed"))
    (wish.folder / "place.json").write_text("{")
    assert asyncio.run(create(wish)) == spec
    assert asyncio.run(_transactions(chain, SPARE)) - before == 2


@pytest.mark.parametrize("wrong", [("--peer", "foo"), ("--rpc", "foo")])
def test_run_create__a_wrong_address_costs_nothing(desk: Desk, wrong: tuple[str, str]) -> None:
    """The same command with the corrected address then finds nothing in its way."""
    before = asyncio.run(_transactions(desk.url, SPARE))
    draft, spec = desk.folder / "run.toml", desk.folder / "new.json"
    draft.write_text("never read")
    words = ("run", "create", str(draft), "--spec", str(spec), "--rpc", desk.url, "--key", str(desk.key(SPARE)))
    with pytest.raises(UsageError, match="'foo' is not"):
        desk.type(*words, *wrong)
    assert asyncio.run(_transactions(desk.url, SPARE)) == before
    assert not spec.exists()


def test_create__the_beginnings_of_another_run_are_kept(chain: str, tmp_path: Path) -> None:
    wish = Wish(make_draft(name="first"), default_model(), tmp_path / "spec.json", [chain], SPARE)
    asyncio.run(_begin_and_die(wish, "deployed"))
    other = Wish(make_draft(name="second"), default_model(), tmp_path / "spec.json", [chain], SPARE)
    with pytest.raises(ConfigError, match="beginnings of another run"):
        asyncio.run(create(other))


def test_create__somebody_elses_run_of_that_id_is_told(chain: str, tmp_path: Path) -> None:
    wish = Wish(make_draft(name="contested"), default_model(), tmp_path / "spec.json", [chain], SPARE)
    spec = asyncio.run(_begin_and_die(wish, "written"))
    asyncio.run(_create_as(chain, STRANGER, spec))
    with pytest.raises(LedgerRejected, match="run exists"):
        asyncio.run(create(wish))


def test_create__on_a_contract_that_is_there(chain: str, spec: tuple[RunSpec, bytes], tmp_path: Path) -> None:
    place = spec[0].ledger
    before = asyncio.run(_transactions(chain, SPARE))
    wish: dict[str, Any] = {"model": default_model(), "spec": tmp_path / "spec.json", "urls": [chain], "key": SPARE}
    with pytest.raises(UsageError, match="deployment_block_hash"):
        asyncio.run(create(Wish(make_draft(name="second"), contract=place.contract, **wish)))
    draft = make_draft(name="second", ledger={"deployment_block_hash": place.deployment_block_hash})
    made = asyncio.run(create(Wish(draft, contract=place.contract, **wish)))
    assert made.ledger == place
    assert asyncio.run(_transactions(chain, SPARE)) - before == 1


def test_create__not_on_another_contract(chain: str, spec: tuple[RunSpec, bytes], tmp_path: Path) -> None:
    contract = asyncio.run(_deploy_something(chain))
    draft = make_draft(name="third", ledger={"deployment_block_hash": spec[0].ledger.deployment_block_hash})
    wish = Wish(draft, default_model(), tmp_path / "spec.json", [chain], SPARE, contract=contract)
    with pytest.raises(LedgerMismatch, match="not this version's contract"):
        asyncio.run(create(wish))


async def _deploy_something(url: str) -> str:
    """A contract whose code is one STOP."""
    from ledger.evm import CHAIN_ID
    from ledger.rpc import Rpc
    from ledger.sender import Sender

    rpc = Rpc([url])
    try:
        receipt = await Sender(rpc, STRANGER, chain_id=CHAIN_ID, journal=None).send(None, "0x60016000f3")
        return str(receipt["contractAddress"])
    finally:
        await rpc.close()


async def _begin_and_die(wish: Wish, stage: str) -> RunSpec:
    """Do what `create` does up to a stage, and leave its remains."""
    from dht.encoding import encode
    from node import creating

    creating._begin(wish)
    place = await creating._deployed(wish, await creating._policy(wish))
    spec = build_spec(wish.draft, model=wish.model, place=place)
    if stage == "deployed":
        return spec
    assert await creating._place(wish, await creating._policy(wish)) == place
    if stage in ("written", "created"):
        creating._write_spec(wish.spec, encode(spec))
    if stage == "created":
        await _create_as(wish.urls[0], wish.key, spec)
    return spec


async def _create_as(url: str, key: bytes, spec: RunSpec) -> None:
    async with await LedgerClient.connect([url], contract=spec.ledger.contract, operator_key=key) as ledger:
        await ledger.create_run(**terms_of(spec))


async def _transactions(url: str, key: bytes) -> int:
    from ledger.rpc import Rpc

    rpc = Rpc([url])
    try:
        return int(await rpc.call("eth_getTransactionCount", address_of(key), "latest"), 16)
    finally:
        await rpc.close()


async def _pass_time(url: str, seconds: int) -> None:
    """Wait until the chain is that much older: the waiting periods of stakes and changes are in its seconds."""
    from ledger.rpc import Rpc

    rpc = Rpc([url])
    try:
        first = int((await rpc.call("eth_getBlockByNumber", "latest", False))["timestamp"], 16)
        while int((await rpc.call("eth_getBlockByNumber", "latest", False))["timestamp"], 16) < first + seconds:  # noqa: ASYNC110 - the chain's clock is waited for
            await asyncio.sleep(0.05)
    finally:
        await rpc.close()


async def _registration(desk: Desk, node: str) -> Any:
    from node.joining import read_spec_file

    spec = read_spec_file(desk.folder / "spec.json")
    async with await LedgerClient.connect([desk.url], contract=spec.ledger.contract, run=spec.run_id) as ledger:
        return await ledger.registration(node)


def test_deploy__the_code_on_chain_is_this_versions(chain: str) -> None:
    from ledger.deployment import built_code_hash

    assert asyncio.run(deploy(chain, SPARE)).code_hash == built_code_hash()


def test_operators__as_the_contract_has_them(spec: tuple[RunSpec, bytes]) -> None:
    assert terms_of(spec[0])["validators"] == (Operator(NODES[0], address_of(VALIDATOR), address_of(VALIDATOR)),)
