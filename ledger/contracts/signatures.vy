# pragma version 0.4.3
"""
@title Signatures a registry accepts
@notice EIP-712 digests bound to this contract on this chain, and the one form of an ECDSA signature that counts.
"""

# Half the order of secp256k1: a signature with a larger s is a second form of a valid one.
MAX_S: constant(uint256) = 57896044618658097711785492504343953926418782139537452191302581570759080747168

DOMAIN_TYPE: constant(bytes32) = keccak256(
    "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)


@view
@internal
def domain() -> bytes32:
    """
    @notice EIP-712 domain separator
    """
    return keccak256(
        abi_encode(DOMAIN_TYPE, keccak256("intellect-node"), keccak256("1"), chain.id, self)
    )


@view
@internal
def digest(struct_hash: bytes32) -> bytes32:
    """
    @notice What is signed for an EIP-712 struct
    """
    return keccak256(concat(b"\x19\x01", self.domain(), struct_hash))


@pure
@internal
def recover(digest: bytes32, signature: Bytes[65]) -> address:
    """
    @notice Signer of a 65-byte r, s, v signature; zero for any that is malformed or not canonical
    """
    if len(signature) != 65:
        return empty(address)
    r: uint256 = convert(slice(signature, 0, 32), uint256)
    s: uint256 = convert(slice(signature, 32, 32), uint256)
    v: uint256 = convert(slice(signature, 64, 1), uint256)
    if s > MAX_S or (v != 27 and v != 28):
        return empty(address)
    return ecrecover(digest, v, r, s)
