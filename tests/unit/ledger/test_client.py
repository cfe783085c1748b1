"""The client against a real devnet over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledger.client import LedgerClient
from ledger.devnet import running_devnet
from ledger.errors import LedgerError, LedgerMismatch, LedgerRejected, LedgerUnavailable, WalletError
from ledger.records import ZERO_DIGEST
from ledger.wallet import address_of
from tests.contract.harness import NODES, RUN, attest, digest, make_proposal, make_registration
from tests.unit.ledger.conftest import ACCOUNTS, Connect, LiveRun, new_run, operator

DEAD_URL = "http://127.0.0.1:9"


async def commit(client: LedgerClient, step: int, *, final: bool = False) -> None:
    parent = digest(step - 1) if step else ZERO_DIGEST
    await client.commit_checkpoint(term=1, step=step, manifest=digest(step), parent=parent, final=final)


async def test_connect__checks_the_contract_the_run_names(live: LiveRun) -> None:
    contract, code_hash = live.deployment.contract, live.deployment.code_hash
    async with await LedgerClient.connect([live.url], contract=contract, chain_id=31337, code_hash=code_hash):
        pass
    with pytest.raises(LedgerMismatch, match="chain"):
        await LedgerClient.connect([live.url], contract=contract, chain_id=1)
    with pytest.raises(LedgerMismatch, match="not the contract"):
        await LedgerClient.connect([live.url], contract=contract, code_hash="0" * 64)
    with pytest.raises(LedgerMismatch, match="no contract"):
        await LedgerClient.connect([live.url], contract=address_of(ACCOUNTS[0]))
    with pytest.raises(WalletError, match="address"):
        await LedgerClient.connect([live.url], contract="0x12")


async def test_connect__tells_chains_of_one_id_apart(live: LiveRun) -> None:
    deployed = live.deployment
    async with await LedgerClient.connect(
        [live.url], contract=deployed.contract, deployment_block=deployed.block_hash
    ) as client:
        assert await client.runs()
    with pytest.raises(LedgerMismatch, match="deployment block"):
        await LedgerClient.connect([live.url], contract=deployed.contract, deployment_block="ab" * 32)


async def test_connect__says_when_nothing_answers() -> None:
    with pytest.raises(LedgerUnavailable, match="no RPC end-point answers"):
        await LedgerClient.connect([DEAD_URL], contract=address_of(ACCOUNTS[0]), patience=0.1)


async def test_connect__refuses_end_points_that_disagree__chain_15(live: LiveRun) -> None:  # CHAIN-15
    async with running_devnet(seed="another", block_seconds=3600) as other:
        with pytest.raises(LedgerMismatch):
            await LedgerClient.connect([live.url, other], contract=live.deployment.contract)


async def test_head__fails_over_to_an_end_point_that_answers__chain_15_chain_02(live: LiveRun) -> None:  # CHAIN-15
    urls = [DEAD_URL, live.url]
    async with await LedgerClient.connect(urls, contract=live.deployment.contract, run=RUN) as client:
        assert (await client.head()).number == (await client.terms()).created_block


async def test_terms__are_those_of_the_contract(live: LiveRun, connect: Connect) -> None:
    client = await connect()
    terms = await client.terms()
    assert (terms.run, terms.owner, terms.quorum) == (RUN, address_of(ACCOUNTS[7]), 2)
    assert terms.trainers == (operator(0),)
    assert await client.runs() == [RUN]
    with pytest.raises(LedgerError, match="no run"):
        await client.terms(digest("unknown"))


async def test_create_run__can_be_repeated__chain_05(live: LiveRun) -> None:  # CHAIN-05
    async def again(quorum: int, key: bytes) -> None:
        contract = live.deployment.contract
        async with await LedgerClient.connect([live.url], contract=contract, operator_key=key) as client:
            await client.create_run(**new_run(quorum=quorum))

    await again(2, ACCOUNTS[7])
    with pytest.raises(LedgerRejected, match="run exists"):
        await again(3, ACCOUNTS[7])
    with pytest.raises(LedgerRejected, match="run exists"):
        await again(2, ACCOUNTS[6])


async def test_commit_checkpoint__seen_by_readers_and_harmless_twice(connect: Connect) -> None:
    trainer, reader = await connect(0), await connect()
    await commit(trainer, 0)
    head = await trainer.head()
    await commit(trainer, 0)
    assert await trainer.head() == head
    (seen,) = await reader.commits()
    assert (seen.step, seen.manifest, seen.block, seen.timestamp) == (0, digest(0), head.number, head.timestamp)
    assert await reader.commits(1) == []


async def test_commit_checkpoint__gives_the_contracts_reason__chain_01(connect: Connect) -> None:  # CHAIN-01
    trainer, validator = await connect(0), await connect(1)
    with pytest.raises(LedgerRejected) as refusal:
        await commit(trainer, 5)
    assert refusal.value.reason == "step"
    with pytest.raises(LedgerRejected, match="not the leading trainer"):
        await commit(validator, 0)


async def test_commit_checkpoint__needs_a_key(connect: Connect) -> None:
    with pytest.raises(LedgerError, match="no operator key"):
        await commit(await connect(), 0)


async def test_register__linked_then_claimed(connect: Connect) -> None:
    sponsor, reader = await connect(6), await connect()
    wallet = address_of(ACCOUNTS[5])
    await sponsor.register(make_registration(sponsor.domain, wallet=None, claimed=wallet.lower()))
    first = await reader.registration(NODES[5])
    assert first is not None
    assert (first.wallet, first.claimed, first.nonce) == (None, wallet, 1)
    linked = make_registration(sponsor.domain, wallet=ACCOUNTS[5], nonce=2)
    await sponsor.register(linked)
    await sponsor.register(linked)
    second = await sponsor.registration(NODES[5])
    assert second is not None
    assert (second.wallet, second.claimed, second.nonce) == (wallet, None, 2)
    assert second.first_block == first.block < second.block


async def test_register__refuses_without_paying(connect: Connect) -> None:
    sponsor = await connect(6)
    good, head = make_registration(sponsor.domain), await sponsor.head()
    cases = [
        (replace(good, node_signature="00" * 64), "node signature"),
        (replace(good, node=NODES[4]), "node signature"),
        (replace(good, nonce=2**200), "nonce"),
        (replace(good, wallet_signature="00" * 65), "wallet signature"),
        (replace(good, wallet_signature="xy"), "signature"),
        (replace(good, run=digest("other")), "unknown run"),
    ]
    for request, reason in cases:
        with pytest.raises(LedgerRejected) as refusal:
            await sponsor.register(request)
        assert refusal.value.reason == reason
    assert await sponsor.head() == head


async def test_finalise__one_winner_and_no_error_for_the_others__chain_10(connect: Connect) -> None:  # CHAIN-10
    trainer = await connect(0)
    await commit(trainer, 0)
    await commit(trainer, 1)
    validators = [await connect(index) for index in (1, 2, 3)]
    closing = await validators[0].closing_block()
    assert closing is not None
    assert closing.number == (await trainer.commits())[1].block
    proposal = make_proposal(closing_block=closing.number)
    attestations = [await validator.attest(proposal) for validator in validators[:2]]
    assert all([await trainer.check_attestation(proposal, each) for each in attestations])
    assert not await trainer.check_attestation(replace(proposal, total=1), attestations[0])
    await asyncio.gather(*(validator.finalise(proposal, attestations) for validator in validators))
    (root,) = await trainer.final_roots()
    assert (root.root, root.attesters) == (proposal.root, tuple(each.operator for each in attestations))
    rival = replace(proposal, root=digest("rival"))
    with pytest.raises(LedgerRejected, match="epoch"):
        await trainer.finalise(rival, [attest(trainer.domain, rival, ACCOUNTS[index]) for index in (1, 2)])
    assert await trainer.closing_block() is None


async def test_block__none_until_it_exists(connect: Connect) -> None:
    reader = await connect()
    head = await reader.head()
    assert await reader.block(head.number) == head
    assert await reader.block(head.number + 1) is None
