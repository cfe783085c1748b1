"""Before a node opens anything: whether its settings can be right, and its key."""

from __future__ import annotations

import structlog

from dht.identity import NodeKey
from dht.peers import check_transport
from node.actors import check_relay
from node.config import NodeConfig
from node.errors import ConfigError
from node.join import JoinString
from node.registration import read_wallet
from node.secrets import read_operator_key

log = structlog.get_logger()


def check_settings(config: NodeConfig, join: JoinString) -> None:
    """Say what is wrong with the settings before a key is made or anything opened. Raises ConfigError, LedgerError."""
    read_wallet(config)
    read_operator_key(config)
    if config.key is not None or config.key_path.exists():
        NodeKey.load(config.key_path)
    for address in config.announce:
        check_transport(address.partition("/p2p/")[0])
    if config.role == "relay":
        check_relay(config)
    elif not (join.peers or join.relays or config.spec or (config.home / "peers.json").exists()):
        raise ConfigError(
            "nobody to ask about the run: the join string names no peer and no relay; get a whole one "
            "(intellect://RUN?peer=..&rpc=..) from the run's operator, or add --peer"
        )


def load_or_make_key(config: NodeConfig) -> NodeKey:
    """The node's key; made at the first start in the data folder, never where a path was named. Raises IdentityError."""
    path = config.key_path
    if config.key is None and not path.exists():
        key = NodeKey.generate()
        key.save(path)
        log.info("key.made", file=str(path), node=key.node)
        return key
    return NodeKey.load(path)
