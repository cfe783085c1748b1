"""`intellect-node run upgrade`: the owner demands that every node run a given version
of this program from a step on."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import time
from typing import TYPE_CHECKING

from node.commands.reading import answer

if TYPE_CHECKING:
    from node.visitor import Visit
    from roles.messages import UpgradeRow

HEARD_SECONDS = 60.0
"""How long nodes may take to receive the demand; they look every few seconds."""
PAUSE_SECONDS = 2.0


async def upgrade(options: argparse.Namespace) -> int:
    """Sign the demand, and publish it until a node of the run is seen to pass it on."""
    from node.commands.run_rule import config_of
    from node.errors import ConfigError
    from node.secrets import OPERATOR_PASSWORD, read_secret
    from node.terminal import count
    from node.visitor import visit_run
    from roles.messages import UpgradeRow
    from roles.upgrades import is_of_owner, sign_upgrade

    _check(options)
    by = _unix_seconds(options.by)
    key = read_secret(options.key.expanduser(), options.operator_password_file, OPERATOR_PASSWORD)
    async with visit_run(config_of(options, key=False)) as visit:
        bare = UpgradeRow(
            run=visit.spec.run_id,
            number=await _next_number(visit),
            messages=options.messages,
            software=options.what,
            step=options.from_step,
            by=by,
            signature="0" * 130,
        )
        demand = sign_upgrade(bare, visit.spec, key)
        owner = (await visit.ledger.terms()).owner
        if not is_of_owner(demand, visit.spec, owner):
            raise ConfigError(f"only the run's owner may ask for this: name the key file of {owner} by --key")
        nodes = await _publish(visit, demand)
    fields = {"number": demand.number, "software": demand.software, "messages": demand.messages, "step": demand.step}
    said = f"passed on by {count(nodes, 'node')}" if nodes else "no node was seen to pass it on yet: type it again"
    lines = (f"asked for intellect-node {demand.software}, messages {demand.messages}, from step {demand.step}", said)
    return answer(options, {**fields, "nodes": nodes}, *lines) or (0 if nodes else 1)


def _check(options: argparse.Namespace) -> None:
    import re

    from node.errors import UsageError
    from roles.messages import MESSAGE_VERSION

    if options.what is None or not re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,2}", options.what):
        raise UsageError("which version? run upgrade 0.3.0 --from-step N --join .. --key owner.key")
    if options.from_step is None or options.from_step < 0 or options.key is None:
        raise UsageError("run upgrade needs --from-step, the first step for which it is needed, and --key, the owner's")
    options.messages = MESSAGE_VERSION if options.messages is None else options.messages
    if not 0 <= options.messages < 2**31:
        raise UsageError(f"--messages {options.messages}: a small number is meant")


def _unix_seconds(text: str | None) -> int:
    from node.errors import UsageError

    if text is None:
        return 0
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--by {text[:40]!r} is no time like 2027-01-31T12:00") from error
    return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()))


async def _demands(visit: Visit) -> dict[str, UpgradeRow]:
    """The demands that nodes pass on now, by node."""
    from dht.errors import Malformed, TransportError
    from roles.messages import UpgradeRow, open_row, upgrades_key

    key, found = upgrades_key(visit.spec.run_id), dict[str, UpgradeRow]()
    try:
        rows = (await visit.directory.read([key])).get(key, [])
    except TransportError:
        return found
    for row in rows:
        try:
            message = open_row(row, run=visit.spec.run_id, buckets=1)
        except Malformed:
            continue
        if isinstance(message, UpgradeRow):
            found[row.signer] = message
    return found


async def _next_number(visit: Visit) -> int:
    """A number above that of every demand seen. It follows the clock, so it is also above those not seen now."""
    from roles.upgrades import is_of_owner

    owner = (await visit.ledger.terms()).owner
    held = [each.number for each in (await _demands(visit)).values() if is_of_owner(each, visit.spec, owner)]
    return max(max(held, default=0) + 1, int(time.time()))


async def _publish(visit: Visit, demand: UpgradeRow) -> int:
    """Publish the demand. Returns how many nodes pass it on after at most `HEARD_SECONDS`."""
    from dht.identity import NodeKey
    from dht.records import Publisher
    from roles.announce import Voice

    key = NodeKey.generate()
    publisher = Publisher(key, visit.directory, run=visit.spec.run_id, state=None)
    await Voice(publisher, node=key.node, spec=visit.spec).announce(demand)
    until = asyncio.get_running_loop().time() + HEARD_SECONDS
    while True:
        await publisher.publish_due()
        passing = [node for node, held in (await _demands(visit)).items() if held == demand and node != key.node]
        if passing or asyncio.get_running_loop().time() > until:
            return len(passing)
        await asyncio.sleep(PAUSE_SECONDS)
