"""The relay: keeps blobs, manifests and shards by digest and serves them over HTTP; pulls the checkpoints it learns of."""

from roles.relay.actor import Relay
from roles.relay.server import Certificate, PortTaken, serve
from roles.relay.settings import RelaySettings
from roles.shardcast.errors import BadCertificate

__all__ = ["BadCertificate", "Certificate", "PortTaken", "Relay", "RelaySettings", "serve"]
