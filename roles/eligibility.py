"""Who is ejected and who has staked enough, from the ledger's records. Strikes and stakes follow a node through
rotations of its key. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledger.records import HeldStrike, Registration, Stake


def ejected_nodes(strikes: Iterable[HeldStrike], registrations: Mapping[str, Registration]) -> frozenset[str]:
    """Nodes with a strike that was not lifted, under whichever key they use now."""
    struck = {held.strike.node for held in strikes if held.outcome != "lifted"}
    heirs = {node for node, held in registrations.items() if not struck.isdisjoint(held.previous)}
    return frozenset(struck | heirs)


def bonded_stakes(stakes: Mapping[tuple[str, str], Stake], registrations: Mapping[str, Registration]) -> dict[str, int]:
    """Base units staked for each node by the wallet it is linked to; stakes being unbonded no longer count."""
    return {
        node: sum(
            stakes[(name, held.wallet)].amount
            for name in (node, *held.previous)
            if (name, held.wallet) in stakes and not stakes[(name, held.wallet)].unbond_at
        )
        for node, held in registrations.items()
        if held.wallet is not None
    }
