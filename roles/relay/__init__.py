"""The relay: stores blobs, manifests and shards by digest, serves them over HTTP, and pulls
checkpoints it learns of."""

from roles.relay.actor import Relay
from roles.relay.boards import Board
from roles.relay.server import Certificate, PortTaken, serve
from roles.relay.settings import RelaySettings
from roles.shardcast.errors import BadCertificate

__all__ = ["BadCertificate", "Board", "Certificate", "PortTaken", "Relay", "RelaySettings", "serve"]
