"""The relay: keeps blobs, manifests and shards by digest and serves them over HTTP; pulls the checkpoints it learns of."""

from roles.relay.actor import Relay
from roles.relay.server import PortTaken, serve
from roles.relay.settings import RelaySettings

__all__ = ["PortTaken", "Relay", "RelaySettings", "serve"]
