"""SHARDCAST: weights from the trainer to everybody, in shards, by digest, over relays (INTELLECT-2, section 3.2)."""
