"""Known failures of earlier swarms that no component's own tests name; docs/reliability.md lists them all."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import structlog.testing
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from dht.encoding import pack
from dht.envelope import DOMAIN, Envelope, seal
from dht.identity import verify
from dht.peers import PeerBook, PeerCache
from dht.protocol import RowProtocol
from dht.session import Setup
from dht.upkeep import Upkeep
from ledger.registrations import RegistrationEvent, fold_registrations, is_signed_by_node
from ledger.wallet import Domain, registration_message
from node.defaults import HEARTBEAT_SECONDS
from node.status.facts import list_peers
from roles.messages import DHT_KINDS, ROW_RULES, Submission
from roles.rollouts.schema import SCHEMA
from roles.validator.gate_faults import PROVABLE
from roles.verification import CHECKS
from tests.builders import NOW, STRANGER, WORKERS, make_submission, make_world

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = ROOT / "docs" / "reliability.md"
DOMAIN_OF_TESTS = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")
RUN = "ab" * 32
WORKER = WORKERS[0]


def sources() -> list[tuple[str, str]]:
    """Every module of the product, by path, with its text."""
    packages = ("dht", "ledger", "node", "roles")
    return [
        (str(path.relative_to(ROOT)), path.read_text()) for name in packages for path in (ROOT / name).rglob("*.py")
    ]


# -- the DHT ----------------------------------------------------------------------------------------------------------


def test_imports__a_light_role_loads_neither_torch_nor_the_forked_dht__pkg_08_dht_01_dht_07() -> None:
    code = "import sys, node.app, roles.relay; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heavy = {"torch", "transformers", "pyarrow", "hivemind.dht.dht", "hivemind.averaging", "web3", "vllm"}
    assert not heavy & set(loaded.split())


def test_imports__the_verifier_is_a_library_of_its_own__val_11() -> None:
    """Checking proofs and rollouts elsewhere needs no actor, no directory and no server."""
    code = "import sys, roles.toploc, roles.verification; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    actors = {"roles.worker", "roles.validator", "roles.trainer", "roles.relay"}
    assert not (actors | {"hivemind", "uvicorn", "dht.directory", "ledger.client", "node"}) & set(loaded.split())


def test_list_peers__with_addresses_and_what_went_wrong__boot_11() -> None:
    book = PeerBook()
    book.note_answer("answers", round_trip=0.02, skew=0.5)
    book.note_failure("silent", "no answer in 3 s")
    shown = {
        peer["node"]: (peer["round_trip"], peer["failures"], peer["last_error"]) for peer in list_peers(book.all())
    }
    assert shown == {"answers": (0.02, 0, ""), "silent": (None, 1, "no answer in 3 s")}


def test_row_rules__the_dht_carries_pointers_only__dht_20() -> None:
    assert max(ROW_RULES[kind].max_bytes for kind in DHT_KINDS) <= 4096


def test_row_rules__a_lease_outlives_three_heartbeats__live_02() -> None:
    assert ROW_RULES["node/1"].lifetime >= 3 * HEARTBEAT_SECONDS


@pytest.mark.parametrize(("skews", "reports"), [([-45.0, -44.0, 0.0], 1), ([0.2, -0.1, 900.0], 0)])
def test_check_clock__a_skewed_clock_is_named_as_the_cause__key_10_boot_17(skews: list[float], reports: int) -> None:
    book = PeerBook()
    for number, skew in enumerate(skews):
        book.note_answer(f"peer{number}", round_trip=0.01, skew=skew)
    setup = Setup(Path("key"), (), (), False)
    cache = PeerCache(None)
    upkeep = Upkeep(node="us", setup=setup, protocol=RowProtocol, book=book, cache=cache, on_refresh=lambda: None)
    with structlog.testing.capture_logs() as logs:
        upkeep._check_clock()
        upkeep._check_clock()  # said once
    assert [line["event"] for line in logs] == ["clock.skewed"] * reports


@pytest.mark.parametrize("field", ["groups", "completions"])
def test_submission__of_no_work_is_none__chain_11(field: str) -> None:
    submission = make_submission(make_world())
    with pytest.raises(ValidationError, match=field):
        Submission.model_validate(submission.model_dump() | {field: 0})


# -- keys and registrations -------------------------------------------------------------------------------------------


def test_sign__rows_and_registrations_have_domains_of_their_own__key_09() -> None:
    """What a node signs for one purpose does not verify for any other."""
    row: Envelope = seal(
        WORKER, run=RUN, kind="node/1", record_key="k", subkey=WORKER.node, sequence=NOW, expiration=NOW, payload=b"{}"
    )
    message = registration_message(DOMAIN_OF_TESTS, run=RUN, node=WORKER.node, wallet=None, claimed=None, nonce=1)
    assert not message.startswith(pack(DOMAIN))
    assert not verify(WORKER.node, message, row.signature)
    assert not verify(WORKER.node, row.payload, row.signature)


def registration(key: object = WORKER, *, nonce: int, claimed: str | None, block: int) -> RegistrationEvent:
    """An unlinked registration as the contract emits it, signed by `key`."""
    fields = {"run": RUN, "node": WORKER.node, "wallet": None, "claimed": claimed, "nonce": nonce}
    message = registration_message(DOMAIN_OF_TESTS, **fields)  # type: ignore[arg-type]
    return RegistrationEvent(WORKER.node, None, claimed, nonce, key.sign(message).hex(), block)  # type: ignore[attr-defined]


MINE, EVIL = "0x" + "11" * 20, "0x" + "22" * 20


def test_fold_registrations__a_stranger_can_neither_claim_nor_move_the_first_block() -> None:
    """The stranger front-runs with a claim of their own, replays the old ones, and sends the highest nonce there is."""
    first, second = registration(nonce=1, claimed=None, block=5), registration(nonce=2, claimed=MINE, block=9)
    forged = [
        registration(STRANGER, nonce=1, claimed=EVIL, block=4),
        registration(STRANGER, nonce=2**64 - 1, claimed=EVIL, block=6),
        registration(nonce=1, claimed=None, block=7),
        registration(nonce=1, claimed=None, block=12),
        registration(nonce=2, claimed=MINE, block=13),
        RegistrationEvent(WORKER.node, None, EVIL, 3, second.node_signature, 14),
    ]
    events = sorted([first, second, *forged], key=lambda event: event.block)
    valid = [event for event in events if is_signed_by_node(event, domain=DOMAIN_OF_TESTS, run=RUN)]
    held = fold_registrations(valid)[WORKER.node]
    assert (held.claimed, held.nonce, held.first_block, held.block) == (MINE, 2, 5, 9)


@pytest.mark.parametrize("domain", [Domain(1, DOMAIN_OF_TESTS.contract), Domain(31337, MINE)])
def test_is_signed_by_node__not_of_another_chain_or_contract(domain: Domain) -> None:
    event = registration(nonce=1, claimed=MINE, block=5)
    assert is_signed_by_node(event, domain=DOMAIN_OF_TESTS, run=RUN)
    assert not is_signed_by_node(event, domain=domain, run=RUN)
    assert not is_signed_by_node(event, domain=DOMAIN_OF_TESTS, run="cd" * 32)


# -- verification and training ----------------------------------------------------------------------------------------


def test_checks__what_needs_the_model_comes_last__val_01() -> None:
    audits = [check.audit for check in CHECKS]
    assert audits == sorted(audits)
    assert [check.name for check in CHECKS[:2]] == ["size", "schema"]


def test_checks__proofs_and_sampling_are_among_them__top_02_val_13() -> None:
    assert {"proofs", "sampling", "endings", "humps", "duplicates"} <= {check.name for check in CHECKS if check.audit}


def test_gate_faults__none_that_somebody_elses_doing_can_cause() -> None:
    """What depends on what a node has seen so far is ignored, never signed."""
    names = {reason.name for reason in PROVABLE}
    assert not names & {"UNREGISTERED", "UNKNOWN_STEP", "LATE", "OVER_LIMIT", "GAP", "BEACON_UNKNOWN"}


def test_schema__holds_no_advantage__trn_05() -> None:
    assert not [name for name in SCHEMA.names if "advantage" in name]


def test_sources__no_pickle_and_nothing_compiled__box_02_trn_01() -> None:
    wrong = re.compile(r"^\s*(import pickle|from pickle)|torch\.(load|compile)\(|trust_remote_code=True", re.M)
    assert [path for path, text in sources() if wrong.search(text)] == []


# -- packaging and texts ----------------------------------------------------------------------------------------------


def test_project__says_which_pythons_it_runs_on__pkg_04_pkg_09() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.14"


def test_project__ranges_in_the_package_and_exact_numbers_in_the_lock__pkg_02_pkg_03_pkg_05() -> None:
    assert not [text for text in PROJECT["dependencies"] if "==" in text or "git+" in text]
    locked = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    names = {re.split(r"[\[<>=]", text)[0].lower().replace("_", "-") for text in PROJECT["dependencies"]}
    missing = [name for name in names if not re.search(rf"^{re.escape(name)}==", locked, re.M)]
    assert not missing


def test_constraints__install_on_the_oldest_python_of_a_debian__pkg_02_pkg_05() -> None:
    """Debian 12 has 3.11.2: a requirement for a later patch release makes pip search
    for another solution without end."""
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.M))
    installed = {canonicalize_name(found.name): found.metadata for found in distributions()}
    asked = {
        name: installed[canonicalize_name(name)]["Requires-Python"] or ""
        for name, version in pins.items()
        if canonicalize_name(name) in installed and installed[canonicalize_name(name)]["Version"] == version
    }
    assert len(asked) > 50
    assert [name for name, wanted in asked.items() if not SpecifierSet(wanted).contains("3.11.2")] == []


def test_reliability__every_test_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    files = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(named) > 50
    assert sorted(name for name in named if not any(f"def {name}(" in text for text in files)) == []
