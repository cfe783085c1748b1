# pragma version 0.4.3
# pragma evm-version cancun
"""
@title Run registry of a decentralised reinforcement-learning network
@notice Holds, per run: who validates and who trains, which node works for which wallet, which checkpoint is in force,
        and the Merkle root of cumulative contributions that a quorum of validators has attested.
@dev    A run is keyed by its id (the SHA-256 of its spec). Anyone can create an id first with other terms, so a node
        compares the terms held here with its spec before it trusts a run. Ed25519 is not verified here: the node's
        signature is emitted and readers ignore registrations for which it fails. Gas is constant in contributions.
"""

MAX_VALIDATORS: constant(uint256) = 64
MAX_TRAINERS: constant(uint256) = 8
MAX_CHECKPOINTS_LOG2: constant(uint256) = 40
MAX_NONCE: constant(uint256) = 2**64 - 1
MAX_STEP: constant(uint256) = 2**40 - 1
MAX_TOTAL: constant(uint256) = 2**128 - 1
# Half the order of secp256k1: a signature with a larger s is a second form of a valid one.
MAX_S: constant(uint256) = 57896044618658097711785492504343953926418782139537452191302581570759080747168

DOMAIN_TYPE: constant(bytes32) = keccak256(
    "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)
REGISTRATION_TYPE: constant(bytes32) = keccak256(
    "Registration(bytes32 run,bytes32 node,address wallet,uint256 nonce)"
)
TALLY_TYPE: constant(bytes32) = keccak256(
    "Tally(bytes32 run,uint256 epoch,uint256 round,uint256 closingBlock,bytes32 parentRoot,bytes32 root,uint256 total,bytes32 blob)"
)


struct Operator:
    node: bytes32
    operator: address
    payout: address


struct Run:
    owner: address
    quorum: uint256
    epoch_checkpoints: uint256
    epoch_max_seconds: uint256
    round_seconds: uint256
    created_block: uint256
    created_at: uint256


struct Checkpoint:
    term: uint256
    step: uint256
    manifest: bytes32
    parent: bytes32
    final: bool
    block: uint256
    timestamp: uint256


struct FinalRoot:
    round: uint256
    closing_block: uint256
    # Chain time no later than that of the closing block.
    closed_at: uint256
    root: bytes32
    total: uint256
    blob: bytes32
    block: uint256


struct Tally:
    run: bytes32
    epoch: uint256
    round: uint256
    closing_block: uint256
    parent_root: bytes32
    root: bytes32
    total: uint256
    blob: bytes32


event RunCreated:
    run: indexed(bytes32)
    owner: indexed(address)


event Registered:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    claimed: address
    nonce: uint256
    node_signature: Bytes[64]


event Committed:
    run: indexed(bytes32)
    term: uint256
    step: uint256
    manifest: bytes32
    parent: bytes32
    final: bool
    timestamp: uint256


event Finalised:
    run: indexed(bytes32)
    epoch: uint256
    round: uint256
    closing_block: uint256
    root: bytes32
    total: uint256
    blob: bytes32
    attesters: DynArray[address, MAX_VALIDATORS]


runs: public(HashMap[bytes32, Run])
run_ids: public(HashMap[uint256, bytes32])
run_count: public(uint256)
validators: HashMap[bytes32, DynArray[Operator, MAX_VALIDATORS]]
trainers: HashMap[bytes32, DynArray[Operator, MAX_TRAINERS]]
# Position + 1 of a validator's operator address, 0 for everybody else.
validator_rank: HashMap[bytes32, HashMap[address, uint256]]
# Last nonce a wallet signed for a node of a run.
wallet_nonce: public(HashMap[bytes32, HashMap[bytes32, HashMap[address, uint256]]])
checkpoints: public(HashMap[bytes32, HashMap[uint256, Checkpoint]])
checkpoint_count: public(HashMap[bytes32, uint256])
final_roots: public(HashMap[bytes32, HashMap[uint256, FinalRoot]])
epoch_count: public(HashMap[bytes32, uint256])


@external
def create_run(
    run: bytes32,
    validators: DynArray[Operator, MAX_VALIDATORS],
    trainers: DynArray[Operator, MAX_TRAINERS],
    quorum: uint256,
    epoch_checkpoints: uint256,
    epoch_max_seconds: uint256,
    round_seconds: uint256,
):
    """
    @notice Open a run. The sender is recorded as its owner; terms never change.
    @param run SHA-256 of the canonical run spec
    @param validators Node key, operator address and payout wallet of each validator; nodes and operators unique
    @param trainers The same for trainers, the leading one first
    @param quorum Attestations that make a tally final; more than half the validators
    @param epoch_checkpoints Checkpoints that close an epoch
    @param epoch_max_seconds Chain seconds that close an epoch
    @param round_seconds Chain seconds a proposer has
    """
    assert run != empty(bytes32), "run id is zero"
    assert self.runs[run].owner == empty(address), "run exists"
    assert len(validators) > 0, "no validator"
    assert len(trainers) > 0, "no trainer"
    assert quorum * 2 > len(validators) and quorum <= len(validators), "quorum"
    assert epoch_checkpoints > 0 and epoch_checkpoints <= MAX_STEP, "epoch checkpoints"
    assert epoch_max_seconds > 0 and epoch_max_seconds <= MAX_STEP, "epoch seconds"
    assert round_seconds > 0 and round_seconds <= MAX_STEP, "round seconds"
    self._check_operators(validators)
    self._check_operators(trainers)

    rank: uint256 = 0
    for validator: Operator in validators:
        rank += 1
        self.validator_rank[run][validator.operator] = rank
    self.validators[run] = validators
    self.trainers[run] = trainers
    self.runs[run] = Run(
        owner=msg.sender,
        quorum=quorum,
        epoch_checkpoints=epoch_checkpoints,
        epoch_max_seconds=epoch_max_seconds,
        round_seconds=round_seconds,
        created_block=block.number,
        created_at=block.timestamp,
    )
    self.run_ids[self.run_count] = run
    self.run_count += 1
    log RunCreated(run=run, owner=msg.sender)


@external
def register(
    run: bytes32,
    node: bytes32,
    wallet: address,
    claimed: address,
    nonce: uint256,
    wallet_signature: Bytes[65],
    node_signature: Bytes[64],
):
    """
    @notice Tie a node to a wallet. Anyone may send it and pay the gas.
    @param node Ed25519 public key of the node
    @param wallet Wallet that signed, or zero when the node only names one
    @param claimed Wallet named without its signature, or zero
    @param nonce Readers take the highest valid one of a node
    @param wallet_signature EIP-712 `Registration` by `wallet`; empty when `wallet` is zero
    @param node_signature Ed25519 signature over the same fields, verified by readers
    @dev An unlinked nonce is not checked here: a stranger could send a huge one and lock the node out.
    """
    assert self.runs[run].owner != empty(address), "unknown run"
    assert node != empty(bytes32), "node is zero"
    assert nonce > 0 and nonce <= MAX_NONCE, "nonce"
    assert len(node_signature) == 64, "node signature length"
    if wallet == empty(address):
        assert len(wallet_signature) == 0, "signature without a wallet"
    else:
        assert claimed == empty(address), "both linked and claimed"
        assert nonce > self.wallet_nonce[run][node][wallet], "nonce"
        digest: bytes32 = self._typed(keccak256(abi_encode(REGISTRATION_TYPE, run, node, wallet, nonce)))
        assert self._recover(digest, wallet_signature) == wallet, "wallet signature"
        self.wallet_nonce[run][node][wallet] = nonce
    log Registered(
        run=run, node=node, wallet=wallet, claimed=claimed, nonce=nonce, node_signature=node_signature
    )


@external
def commit_checkpoint(run: bytes32, term: uint256, step: uint256, manifest: bytes32, parent: bytes32, final: bool):
    """
    @notice Put a checkpoint in force. Only the leading trainer's operator may.
    @param term Always 1: the first trainer leads
    @param step The last committed step plus 1, from 0
    @param manifest Digest of the checkpoint's manifest
    @param parent Digest committed before it, zero for step 0
    @param final True when no checkpoint follows
    """
    assert self.runs[run].owner != empty(address), "unknown run"
    assert msg.sender == self.trainers[run][0].operator, "not the leading trainer"
    assert term == 1, "term"
    assert manifest != empty(bytes32), "manifest is zero"
    count: uint256 = self.checkpoint_count[run]
    assert step == count and step <= MAX_STEP, "step"
    last: bytes32 = empty(bytes32)
    if count > 0:
        assert not self.checkpoints[run][count - 1].final, "run has ended"
        last = self.checkpoints[run][count - 1].manifest
    assert parent == last, "parent"
    self.checkpoints[run][count] = Checkpoint(
        term=term,
        step=step,
        manifest=manifest,
        parent=parent,
        final=final,
        block=block.number,
        timestamp=block.timestamp,
    )
    self.checkpoint_count[run] = count + 1
    log Committed(
        run=run,
        term=term,
        step=step,
        manifest=manifest,
        parent=parent,
        final=final,
        timestamp=block.timestamp,
    )


@external
def finalise(tally: Tally, signatures: DynArray[Bytes[65], MAX_VALIDATORS]):
    """
    @notice Make a tally final with the attestations of a quorum. Anyone may send it.
    @param tally What the validators attested; `epoch` is the count of final roots, `parent_root` the last root
    @param signatures EIP-712 `Tally`, one per validator operator
    """
    run: bytes32 = tally.run
    terms: Run = self.runs[run]
    assert terms.owner != empty(address), "unknown run"
    epoch: uint256 = self.epoch_count[run]
    assert tally.epoch == epoch, "epoch"
    previous: FinalRoot = self._previous(run, epoch)
    assert tally.parent_root == previous.root, "parent root"
    assert tally.root != empty(bytes32), "root is zero"
    assert tally.round <= MAX_STEP, "round"
    assert tally.total >= previous.total and tally.total <= MAX_TOTAL, "total"
    closed_at: uint256 = self._close(run, terms, previous, tally.closing_block)
    attesters: DynArray[address, MAX_VALIDATORS] = self._attesters(tally, signatures)
    assert len(attesters) >= terms.quorum, "too few attestations"

    self.final_roots[run][epoch] = FinalRoot(
        round=tally.round,
        closing_block=tally.closing_block,
        closed_at=closed_at,
        root=tally.root,
        total=tally.total,
        blob=tally.blob,
        block=block.number,
    )
    self.epoch_count[run] = epoch + 1
    log Finalised(
        run=run,
        epoch=epoch,
        round=tally.round,
        closing_block=tally.closing_block,
        root=tally.root,
        total=tally.total,
        blob=tally.blob,
        attesters=attesters,
    )


@view
@external
def operators(
    run: bytes32,
) -> (DynArray[Operator, MAX_VALIDATORS], DynArray[Operator, MAX_TRAINERS]):
    """
    @notice The validators and trainers of a run
    """
    return self.validators[run], self.trainers[run]


@view
@external
def domain_separator() -> bytes32:
    """
    @notice EIP-712 domain of this contract on this chain
    """
    return self._domain()


@view
@external
def checkpoints_until(run: bytes32, number: uint256) -> uint256:
    """
    @notice How many checkpoints were committed in blocks up to and including `number`
    """
    return self._checkpoints_until(run, number)


@pure
def _check_operators(operators: DynArray[Operator, MAX_VALIDATORS]):
    """
    @dev Refuse zero or repeated nodes and operators
    """
    for i: uint256 in range(len(operators), bound=MAX_VALIDATORS):
        assert operators[i].node != empty(bytes32), "node is zero"
        assert operators[i].operator != empty(address), "operator is zero"
        assert operators[i].payout != empty(address), "payout is zero"
        for j: uint256 in range(i + 1, len(operators), bound=MAX_VALIDATORS):
            assert operators[i].node != operators[j].node, "node repeated"
            assert operators[i].operator != operators[j].operator, "operator repeated"


@view
def _previous(run: bytes32, epoch: uint256) -> FinalRoot:
    """
    @dev The last final root, or for epoch 0 the state at the run's creation
    """
    if epoch > 0:
        return self.final_roots[run][epoch - 1]
    return FinalRoot(
        round=0,
        closing_block=self.runs[run].created_block,
        closed_at=self.runs[run].created_at,
        root=empty(bytes32),
        total=0,
        blob=empty(bytes32),
        block=self.runs[run].created_block,
    )


@view
def _close(run: bytes32, terms: Run, previous: FinalRoot, closing_block: uint256) -> uint256:
    """
    @dev Refuse a closing block at which no epoch can have closed, and return a chain time no later than it.
         Necessary conditions only: that it is the first such block, the attesting validators judge (an epoch in which
         nobody earned is not written, so later blocks must stay admissible).
    """
    assert closing_block > previous.closing_block and closing_block <= block.number, "closing block"
    before: uint256 = self._checkpoints_until(run, previous.closing_block)
    until: uint256 = self._checkpoints_until(run, closing_block)
    ended: bool = until > 0 and self.checkpoints[run][until - 1].final
    if until > before and (ended or until - before >= terms.epoch_checkpoints):
        return self.checkpoints[run][until - 1].timestamp
    patience: uint256 = terms.epoch_max_seconds
    if ended:
        # Nothing is left to wait for but the verdicts still open.
        patience = min(patience, terms.round_seconds)
    assert block.timestamp >= previous.closed_at + patience, "epoch is open"
    return previous.closed_at + patience


@view
def _checkpoints_until(run: bytes32, number: uint256) -> uint256:
    low: uint256 = 0
    high: uint256 = self.checkpoint_count[run]
    for _: uint256 in range(MAX_CHECKPOINTS_LOG2):
        if low == high:
            break
        middle: uint256 = (low + high) // 2
        if self.checkpoints[run][middle].block <= number:
            low = middle + 1
        else:
            high = middle
    return low


@view
def _attesters(
    tally: Tally, signatures: DynArray[Bytes[65], MAX_VALIDATORS]
) -> DynArray[address, MAX_VALIDATORS]:
    """
    @dev The distinct validator operators who signed; one bad signature refuses the whole
    """
    digest: bytes32 = self._typed(keccak256(abi_encode(TALLY_TYPE, tally)))
    attesters: DynArray[address, MAX_VALIDATORS] = []
    seen: uint256 = 0
    for signature: Bytes[65] in signatures:
        signer: address = self._recover(digest, signature)
        rank: uint256 = self.validator_rank[tally.run][signer]
        assert signer != empty(address) and rank > 0, "not a validator"
        assert seen & (1 << rank) == 0, "attester repeated"
        seen |= 1 << rank
        attesters.append(signer)
    return attesters


@view
def _domain() -> bytes32:
    return keccak256(
        abi_encode(DOMAIN_TYPE, keccak256("intellect-node"), keccak256("1"), chain.id, self)
    )


@view
def _typed(struct_hash: bytes32) -> bytes32:
    return keccak256(concat(b"\x19\x01", self._domain(), struct_hash))


@pure
def _recover(digest: bytes32, signature: Bytes[65]) -> address:
    """
    @dev Signer of a 65-byte r, s, v signature; zero for any that is malformed or not canonical
    """
    if len(signature) != 65:
        return empty(address)
    r: uint256 = convert(slice(signature, 0, 32), uint256)
    s: uint256 = convert(slice(signature, 32, 32), uint256)
    v: uint256 = convert(slice(signature, 64, 1), uint256)
    if s > MAX_S or (v != 27 and v != 28):
        return empty(address)
    return ecrecover(digest, v, r, s)
