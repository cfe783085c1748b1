# pragma version 0.4.3
"""
@title Merkle tree of cumulative contributions
@notice The same tree as `ledger/merkle.py`: SHA-256, one domain each for leaves, inner nodes and the root, which also
        binds the number of leaves. A node without a partner rises unchanged.
"""

MAX_DEPTH: constant(uint256) = 32


struct Leaf:
    role: uint8
    node: bytes32
    wallet: address
    units: uint128
    amount: uint128


@pure
@internal
def root(leaf: Leaf, index: uint256, count: uint256, siblings: DynArray[bytes32, MAX_DEPTH]) -> bytes32:
    """
    @notice Root of the tree in which `leaf` stands at `index` of `count`; zero for a malformed proof
    @param siblings Hashes beside the path, from the bottom up; exactly as many as the path has partners
    """
    if index >= count or count >= 2**MAX_DEPTH:
        return empty(bytes32)
    top: bytes32 = sha256(
        concat(
            b"tally-leaf/2",
            convert(leaf.role, bytes1),
            leaf.node,
            convert(leaf.wallet, bytes20),
            convert(leaf.units, bytes16),
            convert(leaf.amount, bytes16),
        )
    )
    position: uint256 = index
    width: uint256 = count
    used: uint256 = 0
    for _: uint256 in range(MAX_DEPTH):
        if width <= 1:
            break
        if position ^ 1 < width:
            if used == len(siblings):
                return empty(bytes32)
            sibling: bytes32 = siblings[used]
            used += 1
            if position & 1 == 1:
                top = sha256(concat(b"tally-node/1", sibling, top))
            else:
                top = sha256(concat(b"tally-node/1", top, sibling))
        position //= 2
        width = (width + 1) // 2
    if used != len(siblings):
        return empty(bytes32)
    return sha256(concat(b"tally-root/1", convert(convert(count, uint64), bytes8), top))
