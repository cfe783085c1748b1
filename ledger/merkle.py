"""The Merkle tree of cumulative contributions whose root a tally commits to.

Leaves and inner nodes are hashed under different domains, so an inner node cannot pass for a leaf. The root also binds
the number of leaves. A node without a sibling moves up unchanged, so no leaf is ever counted twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ledger.records import ROLES_BY_NUMBER, Leaf
from ledger.wallet import NO_ADDRESS, public_key_from_node

MAX_UNITS = 2**128 - 1
MAX_LEAVES = 2**32


@dataclass(frozen=True, slots=True)
class MerkleProof:
    """Position of a leaf (`index` of `count`, in tree order) and the sibling hashes (hex) from the bottom up."""

    index: int
    count: int
    siblings: tuple[str, ...]


def leaf_hash(leaf: Leaf) -> bytes:
    """32 bytes that bind role, node, wallet, units and amount. Raises ValueError for units or
    an amount outside [0, 2^128)."""
    if not 0 <= leaf.units <= MAX_UNITS:
        raise ValueError("units out of range")
    if not 0 <= leaf.amount <= MAX_UNITS:
        raise ValueError("amount out of range")
    owner = public_key_from_node(leaf.node) + bytes.fromhex((leaf.wallet or NO_ADDRESS)[2:])
    body = bytes([ROLES_BY_NUMBER.index(leaf.role)]) + owner + leaf.units.to_bytes(16) + leaf.amount.to_bytes(16)
    return hashlib.sha256(b"tally-leaf/2" + body).digest()


def sorted_leaves(leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Leaves in tree order: by (role, node, wallet), unlinked first. Raises ValueError when one appears twice."""
    ordered = tuple(sorted(leaves, key=_order))
    if len({_order(leaf) for leaf in ordered}) != len(ordered):
        raise ValueError("a (role, node, wallet) appears twice")
    return ordered


def merkle_root(leaves: Iterable[Leaf]) -> str:
    """Root (hex) of the leaves, given in any order. The root of the empty tree is that of count 0 over nothing."""
    level = [leaf_hash(leaf) for leaf in sorted_leaves(leaves)]
    count = len(level)
    while len(level) > 1:
        level = _parents(level)
    return _root(count, level[0] if level else b"")


def merkle_proof(leaves: Iterable[Leaf], leaf: Leaf) -> MerkleProof:
    """Proof that `leaf` is under the root. Raises ValueError when it is not among the leaves."""
    ordered = sorted_leaves(leaves)
    index = position = ordered.index(leaf)
    level = [leaf_hash(each) for each in ordered]
    siblings: list[str] = []
    while len(level) > 1:
        if position ^ 1 < len(level):
            siblings.append(level[position ^ 1].hex())
        level, position = _parents(level), position // 2
    return MerkleProof(index, len(ordered), tuple(siblings))


def verify_proof(root: str, leaf: Leaf, proof: MerkleProof) -> bool:
    """Whether `proof` shows that `leaf` is under `root`. A malformed proof gives False, never an error."""
    if not 0 <= proof.index < proof.count < MAX_LEAVES:
        return False
    try:
        top = _climb(leaf_hash(leaf), proof.index, proof.count, [bytes.fromhex(each) for each in proof.siblings])
    except (ValueError, IndexError):
        return False
    return top is not None and _root(proof.count, top) == root


def _climb(node: bytes, position: int, width: int, siblings: Sequence[bytes]) -> bytes | None:
    used = 0
    while width > 1:
        if position ^ 1 < width:
            sibling = siblings[used]
            used += 1
            node = _parent(sibling, node) if position & 1 else _parent(node, sibling)
        position, width = position // 2, (width + 1) // 2
    return node if used == len(siblings) else None


def _parents(level: Sequence[bytes]) -> list[bytes]:
    pairs = [_parent(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return [*pairs, level[-1]] if len(level) % 2 else pairs


def _parent(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"tally-node/1" + left + right).digest()


def _root(count: int, top: bytes) -> str:
    return hashlib.sha256(b"tally-root/1" + count.to_bytes(8, "big") + top).hexdigest()


def _order(leaf: Leaf) -> tuple[int, str, str]:
    return (ROLES_BY_NUMBER.index(leaf.role), leaf.node, leaf.wallet or "")
