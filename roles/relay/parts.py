"""The parts of a relay that its HTTP routes use, created once by the actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dht.identity import NodeId
from roles.relay.boards import Board
from roles.relay.fence import Fence
from roles.relay.limits import AddressRate, GrantBook, Members, Quota
from roles.relay.metrics import Counters
from roles.relay.settings import RelaySettings
from roles.relay.sponsor import SponsorDesk
from roles.shardcast.shelf import Shelf


@dataclass(frozen=True, slots=True)
class RelayParts:
    """Parts of one relay. `noticed` is called for each manifest and each pushed shard. `state_quota` limits what a
    trainer stores besides its checkpoints, `quota` what any other node does."""

    run: str
    node: str
    settings: RelaySettings
    shelf: Shelf
    members: Members
    grants: GrantBook
    quota: Quota
    state_quota: Quota
    rate: AddressRate
    sponsor: SponsorDesk
    fence: Fence
    counters: Counters
    noticed: Callable[[], None]
    started: float
    board: Board | None = None

    def quota_of(self, node: NodeId) -> Quota:
        """The quota that a node's blobs are charged to: `state_quota` for a trainer, else `quota`."""
        return self.state_quota if node in self.members.trainers else self.quota
