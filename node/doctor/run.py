"""The run and this node: its requirements, the key's place in it, and the versions that other nodes run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec

from dht.envelope import Envelope
from dht.errors import NodeError, PeerError
from dht.identity import NodeKey
from node import __version__
from node.base_model import base_folder, differing_files
from node.config import NodeConfig
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.doctor.keys import SIGNERS
from node.doctor.machine import SCORING_ROLES
from node.errors import ConfigError
from roles.messages import MESSAGE_VERSION, NodeRecord, open_row
from roles.requirements import Hardware, describe_hardware, describe_requirements, find_shortfalls
from roles.sandbox.program import why_threadless
from roles.spec import RunSpec
from roles.tasks.registry import GROUP, TASK_NAMES

PROGRAMS = "code"
"""The task that runs the programs it scores."""
LIBRARIES = {
    "maths": ("math_verify", "tasks"),
    "reasoning-gym": ("reasoning_gym", "tasks"),
    "verifiers": ("verifiers", "environments"),
}
"""Library that a task scores with, and the extra that installs it."""
SOFTWARE = f"intellect-node/{__version__}"


def judge_hardware(spec: RunSpec, hardware: Hardware, *, role: str) -> list[Finding]:
    """Compare the machine with what the run requires of workers."""
    asked = describe_requirements(spec.requirements)
    if role != "worker":
        return [skipped("requirements", f"the run asks of workers: {asked}")]
    missing = find_shortfalls(spec.requirements, hardware)
    if missing:
        fix = "take part with a machine that has it, or in a smaller run (intellect-node runs)"
        return [fault("requirements", str(each), fix) for each in missing]
    found = [ok("requirements", f"asked: {asked}; here: {describe_hardware(hardware)}")]
    if spec.requirements.download_mbit and hardware.download_mbit is None:
        found.append(
            skipped("requirements", "the line to the relays could not be measured: no checkpoint large enough yet")
        )
    return found


def judge_tasks(spec: RunSpec, *, role: str, why_not: Callable[[], str | None] = why_threadless) -> Finding:
    """Whether this node can score the run's tasks; programs need a working sandbox."""
    names = ", ".join(task.name for task in spec.tasks)
    missing = next(filter(None, (_what_lacks(task.name) for task in spec.tasks)), None)
    if role in SCORING_ROLES and missing is not None:
        return fault("tasks", f"{names}: what scores them is not installed here", missing)
    if role not in SCORING_ROLES or not any(task.name == PROGRAMS for task in spec.tasks):
        return ok("tasks", names)
    why = why_not()
    if why is None:
        return ok("tasks", f"{names}; programs are confined here")
    return fault("tasks", f"{names}: {why}", "use a kernel that confines programs, or take part as a relay")


def _what_lacks(task: str) -> str | None:
    """How to install what a task needs, if it is missing."""
    library, extra = LIBRARIES.get(task, ("", ""))
    if library and find_spec(library) is None:
        return f"pip install -c constraints.txt 'intellect-node[{extra}]'"
    if task in TASK_NAMES or any(point.name == task for point in metadata.entry_points(group=GROUP)):
        return None
    return f"install the package of the task {task} that the run's operator names"


def judge_place(config: NodeConfig, spec: RunSpec) -> Finding:
    """Whether the run's spec names this node, if its role requires that."""
    if config.role not in SIGNERS:
        return ok("role", f"anybody may be a {config.role}")
    listed = [item.node for item in (spec.trainers if config.role == "trainer" else spec.validators)]
    try:
        node = NodeKey.load(config.key_path).node
    except NodeError:
        return fault(
            "role", f"a {config.role} needs the key that the run's spec names", f"name it by --key: {', '.join(listed)}"
        )
    if node not in listed:
        said = f"this node is {node}; the run's spec names as {config.role}s {', '.join(listed)}"
        if config.role == "validator":  # the ledger may name others by now
            return warning(
                "role", said, "appointed since? intellect-node run validators show; else name the right key: --key"
            )
        return fault("role", said, "name the right key: --key")
    return ok("role", f"the run names this node as {config.role}")


def judge_model(config: NodeConfig, spec: RunSpec) -> Finding:
    """Compare a trainer's base model with the files that the run's spec pins."""
    base, fix = base_folder(config), "name the folder of the run's base model: --model"
    try:
        differing = differing_files(base, spec)
    except ConfigError as error:
        return fault("model", str(error), fix)
    if differing:
        return fault("model", f"the model in {base} is not the run's: {', '.join(differing)} differ", fix)
    return ok("model", f"{base} is the run's, file for file")


def read_records(rows: Iterable[Envelope], *, spec: RunSpec) -> list[NodeRecord]:
    """Node records with valid signatures; the others are left out."""
    found = []
    for row in rows:
        try:
            record = open_row(row, run=spec.run_id, buckets=spec.buckets)
        except PeerError:
            continue
        if isinstance(record, NodeRecord):
            found.append(record)
    return found


def judge_software(records: Sequence[NodeRecord]) -> Finding:
    """Compare our version with that of the run's trainers, validators and relays."""
    ours = f"{SOFTWARE}, messages {MESSAGE_VERSION}"
    if not records:
        return skipped("software", f"{ours}; nobody of the run could be asked")
    messages = Counter(record.message_version for record in records)
    if MESSAGE_VERSION not in messages:
        newest = max(messages)
        fix = "install the version the run uses; its operator names it"
        return fault("software", f"{ours}; the run speaks messages {newest}", fix)
    versions = Counter(record.software for record in records)
    if SOFTWARE in versions:
        return ok("software", f"{ours}, as {versions[SOFTWARE]} of {len(records)} nodes seen")
    common = versions.most_common(1)[0][0]
    return warning(
        "software", f"{ours}; most of the run has {common[:64]}", "install that version, if yours gives trouble"
    )
