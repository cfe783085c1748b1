"""SHARDCAST: distributes weights from the trainer to every node, in shards, by digest, over relays
(INTELLECT-2, section 3.2).

Use without a node, ledger or DHT. A publisher is a key; anyone who knows its id can verify every byte:

    from roles.shardcast import NodeKey, open_channel

    key = NodeKey.generate()                                    # key.save(path), NodeKey.load(path)
    async with open_channel(key.node, ["http://relay:8080"], key=key) as channel:
        published = await channel.publish(Path("checkpoint"))   # step 0, then 1, 2, ..

    async with open_channel(publisher, ["http://relay:8080", "http://other:8080"]) as channel:
        folder = await channel.fetch(Path("weights"))           # the newest, verified, complete or absent
        await channel.follow(Path("weights"), print)            # and each one from now on

A relay of the channel is `roles.relay.Relay(key, root=folder, run=channel_of(publisher), trainers=[publisher],
..)`, or `intellect-node shardcast relay`. Errors are `dht.errors.TransportError` (no relay delivers or accepts
it; call again to resume), `roles.shardcast.errors.StoreFull` (the disk), `dht.errors.PeerError` (a signature
that is not the publisher's).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dht.identity import NodeKey as NodeKey
    from roles.shardcast.direct import Channel as Channel
    from roles.shardcast.direct import Published as Published
    from roles.shardcast.direct import channel_of as channel_of
    from roles.shardcast.direct import open_channel as open_channel

__all__ = ["Channel", "NodeKey", "Published", "channel_of", "open_channel"]


def __getattr__(name: str) -> Any:
    """Import on use, so that importing one module of the package need not load the client."""
    if name == "NodeKey":
        from dht.identity import NodeKey

        return NodeKey
    if name in __all__:
        from roles.shardcast import direct

        return getattr(direct, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
