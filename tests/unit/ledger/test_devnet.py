"""The development chain: its RPC for third-party clients, its limits, and a restart after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
from eth_account import Account
from web3 import HTTPProvider, Web3

from ledger import abi
from ledger.accounts import devnet_accounts
from ledger.chain_journal import Genesis, Journal
from ledger.client import LedgerClient
from ledger.deployment import deploy
from ledger.devnet import _mine_on_time, running_devnet
from ledger.devnet_rpc import DevnetRpc
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.evm import DevChain
from ledger.records import ZERO_DIGEST
from ledger.wallet import address_of
from tests.contract.harness import ADDRESSES, KEYS, OWNER, RUN, START, Registry, digest
from tests.full_disk import no_file_larger
from tests.unit.ledger.conftest import ACCOUNTS, LiveRun, new_run


def payment() -> bytes:
    """A signed transfer of one coin's smallest unit."""
    fields = {"type": 2, "chainId": 31337, "nonce": 0, "gas": 21000, "to": ADDRESSES[2], "value": 1}
    fees = {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 10**9}
    return bytes(Account.sign_transaction({**fields, **fees}, KEYS[1]).raw_transaction)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ask(url: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient() as client:
        return await client.post(url, content=content)


async def test_rpc__serves_a_standard_client(live: LiveRun) -> None:
    def read() -> tuple[int, int, str, list[str]]:
        web3 = Web3(HTTPProvider(live.url))
        contract = web3.eth.contract(address=Web3.to_checksum_address(live.deployment.contract), abi=abi.built()["abi"])
        logs = contract.events.RunCreated().get_logs(from_block=0)
        owners = [str(log["args"]["owner"]) for log in logs]
        block = web3.eth.get_block("latest")
        return web3.eth.chain_id, contract.functions.run_count().call(), block["hash"].hex(), owners

    chain_id, count, _, owners = await asyncio.to_thread(read)
    assert (chain_id, count, owners) == (31337, 1, [address_of(ACCOUNTS[7])])


BAD_REQUESTS = [
    (b"{", -32700),
    (b"[" * 2048, -32700),
    (b"[" * 100_000, -32700),
    ([], -32600),
    ([{"method": "eth_chainId"}] * 65, -32600),
    ("eth_chainId", -32600),
    ({"method": 7}, -32600),
    ({"method": "debug_setHead"}, -32601),
    ({"method": "eth_getBalance", "params": ["0x12"]}, -32602),
    ({"method": "eth_getBalance", "params": {"a": 1}}, -32602),
    ({"method": "eth_getBlockByNumber", "params": ["zz"]}, -32602),
    ({"method": "eth_getLogs", "params": [{"fromBlock": "0x0", "toBlock": "0xffffff"}]}, -32602),
    ({"method": "eth_getLogs", "params": [{"address": [[]]}]}, -32602),
    ({"method": "eth_call", "params": [{"to": "0x" + "0" * 40, "value": "x"}]}, -32602),
    ({"method": "eth_sendRawTransaction", "params": ["0x02c0"]}, -32000),
    ({"method": "eth_sendRawTransaction", "params": ["0x"]}, -32000),
]


def test_rpc__refuses_bad_requests() -> None:
    rpc = DevnetRpc(DevChain(Genesis(START, ()), clock=lambda: 0))
    for body, code in BAD_REQUESTS:
        answer = json.loads(rpc.answer(body if isinstance(body, bytes) else json.dumps(body).encode()))
        assert answer["error"]["code"] == code, body


@pytest.mark.parametrize("live", ["devnet"], indirect=True)
async def test_rpc__bounds_the_body(live: LiveRun) -> None:
    assert (await ask(live.url, b" " * 600_000)).status_code == 413


async def test_running_devnet__loopback_only() -> None:
    with pytest.raises(LedgerError, match="loopback"):
        async with running_devnet("0.0.0.0", seed="x"):  # noqa: S104
            pass


async def test_running_devnet__says_when_the_port_is_taken(live: LiveRun) -> None:
    port = int(live.url.rpartition(":")[2])
    with pytest.raises(LedgerError, match="cannot listen"):
        async with running_devnet(port=port, seed="x"):
            pass


def test_dev_chain__replays_its_journal_to_the_same_hashes(tmp_path: Path) -> None:
    journal = tmp_path / "chain"
    registry = Registry.__new__(Registry)
    registry.chain = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0, journal=journal)
    registry.transact(OWNER, None, abi.built()["bytecode"])
    registry.chain.mine()
    head = registry.chain.head
    registry.chain.close()
    journal.write_bytes(journal.read_bytes() + b"[1700000")  # torn by a kill
    again = DevChain(Genesis(START + 99, ()), clock=lambda: 0, journal=journal)
    assert again.head == head
    again.mine()
    again.close()
    third = DevChain(Genesis(START, ()), clock=lambda: 0, journal=journal)
    assert third.head == again.head
    third.close()


def test_journal__half_a_line_that_a_full_disk_took_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "chain", Genesis(START, ()))
    with no_file_larger((tmp_path / "chain").stat().st_size + 20), pytest.raises(OSError, match="too large"):
        journal.append(START + 1, b"a transaction that does not fit any more")
    journal.append(START + 2, None)
    journal.close()
    again = Journal(tmp_path / "chain", Genesis(START, ()))
    assert again.blocks == ((START + 2, None),)
    again.close()


@pytest.mark.parametrize(
    "text",
    ["7\n", '{"timestamp": 1}\n', '{"timestamp": 1, "funded": []}\n[1, "xy"]\n', '{"timestamp": 1, "funded": []}\n1\n'],
)
def test_journal__refuses_lines_that_are_no_blocks(tmp_path: Path, text: str) -> None:
    (tmp_path / "chain").write_text(text)
    with pytest.raises(LedgerError, match="not a devnet journal"):
        Journal(tmp_path / "chain", Genesis(START, ()))


def test_rpc__a_full_disk_is_told_to_whoever_sends(tmp_path: Path) -> None:
    chain = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0, journal=tmp_path / "chain")
    send = {"id": 1, "method": "eth_sendRawTransaction", "params": [payment().hex()]}
    with no_file_larger((tmp_path / "chain").stat().st_size):
        answer = json.loads(DevnetRpc(chain).answer(json.dumps(send).encode()))
    assert answer["error"]["message"] == "the chain cannot write its journal: File too large"
    assert "result" in json.loads(DevnetRpc(chain).answer(json.dumps(send).encode()))
    chain.close()


async def test_mine_on_time__goes_on_once_there_is_room(tmp_path: Path) -> None:
    chain = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0, journal=tmp_path / "chain")
    mining = asyncio.create_task(_mine_on_time(chain, 0.0))
    with no_file_larger((tmp_path / "chain").stat().st_size):
        await turns(5)
    await turns(5)
    assert chain.head["number"] != "0x0"
    mining.cancel()
    chain.close()


def test_dev_chain__refuses_a_file_that_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "chain").write_text("hello\n")
    with pytest.raises(LedgerError, match="not a devnet journal"):
        DevChain(Genesis(START, ()), clock=lambda: 0, journal=tmp_path / "chain")


async def start_process(journal: Path, port: int) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.devnet", "--seed", "unit-tests", "--journal", str(journal)),
        *("--port", str(port), "--block-seconds", "3600"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
    assert line[:2] == ["devnet", "ready"]
    return process, line[2]


async def test_devnet__killed_and_restarted_keeps_the_run__chain_07(tmp_path: Path) -> None:
    process, url = await start_process(tmp_path / "chain", 0)
    try:
        key = devnet_accounts(8, "unit-tests")[7]
        deployment = await deploy(url, key)
        async with await LedgerClient.connect([url], contract=deployment.contract, operator_key=key) as owner:
            await owner.create_run(**new_run(quorum=2))
        trainer = await LedgerClient.connect(
            [url], contract=deployment.contract, run=RUN, operator_key=ACCOUNTS[0], patience=0.2
        )
        async with trainer:
            await trainer.commit_checkpoint(term=1, step=0, manifest=digest(0), parent=ZERO_DIGEST, final=False)
            before = await trainer.head()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises(LedgerUnavailable):
                await trainer.commit_checkpoint(term=1, step=1, manifest=digest(1), parent=digest(0), final=False)
            process, _ = await start_process(tmp_path / "chain", int(url.rpartition(":")[2]))
            await trainer.commit_checkpoint(term=1, step=1, manifest=digest(1), parent=digest(0), final=False)
            assert await trainer.block(before.number) == before
            assert [commit.step for commit in await trainer.commits()] == [0, 1]
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
