"""The only module that imports hivemind. It bypasses hivemind's top-level package, which
would load torch into every relay.

`hivemind`, `hivemind.utils` and `hivemind.dht` become bare packages that hold only the names their modules import from
each other. Nothing here is our own code; `protocol`, `p2p` and `session` build on these names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec


def _enter_bare(name: str, path: list[str]) -> types.ModuleType:
    module = types.ModuleType(name)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = path
    module.__spec__, module.__path__, module.__package__ = spec, path, name
    sys.modules[name] = module
    return module


def _enter_hivemind() -> None:
    if "hivemind" in sys.modules:
        return
    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("hivemind is not installed; install it with: pip install 'hivemind>=1.1.12,<1.2'")
    root = next(iter(spec.submodule_search_locations))
    _enter_bare("hivemind", [root])
    utils = _enter_bare("hivemind.utils", [f"{root}/utils"])
    _enter_bare("hivemind.dht", [f"{root}/dht"])
    for source, names in {
        "logging": ("get_logger",),
        "serializer": ("MSGPackSerializer", "SerializerBase"),
        "timed_storage": (
            "DHTExpiration",
            "ValueWithExpiration",
            "get_dht_time",
            "MAX_DHT_TIME_DISCREPANCY_SECONDS",
            "TimedStorage",
        ),
    }.items():
        module = importlib.import_module(f"hivemind.utils.{source}")
        for name in names:
            setattr(utils, name, getattr(module, name))


_enter_hivemind()

import hivemind.dht.node as node_module  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.protocol import DHTProtocol  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.p2p import P2P, P2PContext, PeerID  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg  # noqa: E402
from hivemind.proto import dht_pb2, p2pd_pb2  # noqa: E402
from hivemind.utils.logging import use_hivemind_log_handler  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402

__all__ = [
    "DHTID",
    "P2P",
    "DHTNode",
    "DHTProtocol",
    "Multiaddr",
    "P2PContext",
    "PeerID",
    "dht_pb2",
    "node_module",
    "p2pd_pb2",
    "raise_if_failed",
    "read_pbmsg_safe",
    "use_hivemind_log_handler",
    "write_pbmsg",
]
