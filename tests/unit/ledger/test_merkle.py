"""The tree of contributions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.merkle import MerkleProof, leaf_hash, merkle_proof, merkle_root, sorted_leaves, verify_proof
from ledger.records import Leaf
from ledger.wallet import address_of, node_from_public_key
from tests.contract.harness import KEYS

WALLETS = (None, *(address_of(key) for key in KEYS[:3]))


@st.composite
def trees(draw: st.DrawFn) -> list[Leaf]:
    owners = st.tuples(st.integers(1, 9), st.sampled_from(WALLETS))
    keys = draw(st.lists(owners, min_size=1, max_size=20, unique=True))
    return [
        Leaf(node_from_public_key(bytes([node] * 32)), wallet, draw(st.integers(0, 2**128 - 1)))
        for node, wallet in keys
    ]


@given(trees())
def test_merkle_proof__verifies_every_leaf_in_any_order(leaves: list[Leaf]) -> None:
    root = merkle_root(leaves)
    assert merkle_root(list(reversed(leaves))) == root
    for leaf in leaves:
        proof = merkle_proof(leaves, leaf)
        assert verify_proof(root, leaf, proof)
        assert not verify_proof(root, replace(leaf, units=leaf.units ^ 1), proof)
        assert not verify_proof(root, leaf, replace(proof, count=proof.count + 1))


@given(trees())
def test_verify_proof__refuses_spoiled_proofs(leaves: list[Leaf]) -> None:
    root, leaf = merkle_root(leaves), leaves[0]
    proof = merkle_proof(leaves, leaf)
    for siblings in ((*proof.siblings, "00" * 32), proof.siblings[:-1], ("zz",) * len(proof.siblings)):
        if siblings != proof.siblings:
            assert not verify_proof(root, leaf, replace(proof, siblings=siblings))
    for index in (-1, proof.count, 2**40):
        assert not verify_proof(root, leaf, replace(proof, index=index))


def test_verify_proof__refuses_an_inner_node_as_a_leaf() -> None:
    leaves = [Leaf(node_from_public_key(bytes([node] * 32)), None, node) for node in (1, 2, 3, 4)]
    hashes = [leaf_hash(leaf) for leaf in sorted_leaves(leaves)]
    assert len(hashes[0] + hashes[1]) == 64 != len(bytes(32) + bytes(20) + bytes(16))
    forged = Leaf(node_from_public_key(hashes[0]), None, 0)
    assert not verify_proof(merkle_root(leaves), forged, MerkleProof(0, 2, (hashes[1].hex(),)))


def test_merkle_root__known_values() -> None:
    leaf = Leaf(node_from_public_key(bytes([1] * 32)), None, 7)
    assert merkle_root([]) == "ed001316b7375ff0c53c015718d2452b00308c171e0b4bd14367d217270bbec8"
    assert merkle_root([leaf]) == "8cb3092e7b6ae53ca5cdf4890c827e38b2df10578cc70f94801bb669aa5acb01"
    assert (
        merkle_root([leaf, replace(leaf, wallet=WALLETS[1])])
        == "df35872d52ecc7ed4b786e84cdca80e558a4ad07f4e06ed0c902fa143f2c23da"
    )


def test_sorted_leaves__refuses_a_pair_twice() -> None:
    leaf = Leaf(node_from_public_key(bytes([1] * 32)), None, 7)
    with pytest.raises(ValueError, match="twice"):
        merkle_root([leaf, replace(leaf, units=8)])


@pytest.mark.parametrize("units", [-1, 2**128])
def test_leaf_hash__refuses_units_out_of_range(units: int) -> None:
    with pytest.raises(ValueError, match="range"):
        leaf_hash(Leaf(node_from_public_key(bytes([1] * 32)), None, units))
