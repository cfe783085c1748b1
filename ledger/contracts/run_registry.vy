# pragma version 0.4.3
# pragma evm-version cancun
# pragma optimize codesize
"""
@title Run registry of a decentralised reinforcement-learning network
@notice Holds, per run: who validates and who trains, which node works for which wallet, which checkpoint is in force,
        which trainer leads, the Merkle root of cumulative contributions that a quorum of validators has attested, and
        the coins that back it: rewards, and stakes that a quorum may slash.
@dev    A run is keyed by its id (the SHA-256 of its spec). Anyone can create an id first with other terms, so a node
        compares the terms held here with its spec before it trusts a run. Ed25519 is not verified here: nodes'
        signatures are emitted and readers ignore what fails them. Gas is constant in contributions.
        Coins of one run never pay for another: what is paid stays below what the run's roots promise, that below what
        was funded; stakes are apart. The owner can pause, and change validators after a delay; neither keeps anyone
        from a claim on a final root or from a stake.
"""

import checks
import coins
import signatures
import tree

MAX_VALIDATORS: constant(uint256) = 64
MAX_TRAINERS: constant(uint256) = 8
MAX_CHECKPOINTS_LOG2: constant(uint256) = 40
MAX_DEPTH: constant(uint256) = 32
MAX_NONCE: constant(uint256) = 2**64 - 1
MAX_STEP: constant(uint256) = 2**40 - 1
MAX_REASON: constant(uint256) = 2**16 - 1
MAX_ROLE: constant(uint8) = 3
MAX_AMOUNT: constant(uint256) = 2**128 - 1
# A run without a final checkpoint counts as over after this long without a commit or a tally.
ABANDONED_SECONDS: constant(uint256) = 30 * 86400

REGISTRATION_TYPE: constant(bytes32) = keccak256(
    "Registration(bytes32 run,bytes32 node,address wallet,uint256 nonce)"
)
ROTATION_TYPE: constant(bytes32) = keccak256(
    "Rotation(bytes32 run,bytes32 oldNode,bytes32 newNode,address wallet,uint256 nonce)"
)
TALLY_TYPE: constant(bytes32) = keccak256(
    "Tally(bytes32 run,uint256 epoch,uint256 round,uint256 closingBlock,bytes32 parentRoot,bytes32 root,uint256 units,uint256 amount,bytes32 blob)"
)
STRIKE_TYPE: constant(bytes32) = keccak256(
    "Strike(bytes32 run,bytes32 node,address wallet,uint256 number,uint256 reason,bytes32 evidence)"
)
LIFT_TYPE: constant(bytes32) = keccak256("Lift(bytes32 run,bytes32 node,uint256 number)")


struct Operator:
    node: bytes32
    operator: address
    payout: address


# What a run is created with. Times are chain seconds, amounts base units of `token` (zero: the native coin).
struct Terms:
    quorum: uint256
    epoch_checkpoints: uint256
    epoch_max_seconds: uint256
    round_seconds: uint256
    lease_seconds: uint256
    takeover_blocks: uint256
    min_stake: uint256
    unbond_seconds: uint256
    dispute_seconds: uint256
    change_seconds: uint256
    epoch_budget: uint256
    token: address


struct Run:
    owner: address
    terms: Terms
    created_block: uint256
    created_at: uint256


struct ValidatorSet:
    quorum: uint256
    # When a proposed set may be put in force; zero for the first.
    apply_at: uint256
    validators: DynArray[Operator, MAX_VALIDATORS]


# Term and parent are in the event: a step's number is its key.
struct Checkpoint:
    manifest: bytes32
    final: bool
    block: uint256
    timestamp: uint256


struct Lease:
    term: uint256
    # Position among the trainers.
    leader: uint256
    # Zero until checkpoint 0 is committed.
    until: uint256
    # Block in which another trainer saw it lapsed; zero while it holds.
    lapse_block: uint256


# Round, blob and attesters are in the event.
struct FinalRoot:
    closing_block: uint256
    # Chain time no later than that of the closing block.
    closed_at: uint256
    root: bytes32
    units: uint256
    amount: uint256


struct Tally:
    run: bytes32
    epoch: uint256
    round: uint256
    closing_block: uint256
    parent_root: bytes32
    root: bytes32
    units: uint256
    amount: uint256
    blob: bytes32


struct Stake:
    amount: uint256
    # When it may be withdrawn; zero while bonded.
    unbond_at: uint256


struct Strike:
    wallet: address
    number: uint256
    # End of the dispute window.
    until: uint256
    disputed: bool
    open: bool


# Coins of a run, all cumulative but `funds`: what was funded and slashed less what was reclaimed.
struct Pool:
    funds: uint256
    promised: uint256
    paid: uint256


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


event Rotated:
    run: indexed(bytes32)
    old_node: indexed(bytes32)
    new_node: indexed(bytes32)
    wallet: address
    nonce: uint256
    old_node_signature: Bytes[64]
    new_node_signature: Bytes[64]


event Committed:
    run: indexed(bytes32)
    term: uint256
    step: uint256
    manifest: bytes32
    parent: bytes32
    final: bool
    timestamp: uint256


event Renewed:
    run: indexed(bytes32)
    term: uint256
    until: uint256


event LapseReported:
    run: indexed(bytes32)
    term: uint256
    reporter: address


event TakenOver:
    run: indexed(bytes32)
    term: uint256
    leader: uint256
    until: uint256


event Finalised:
    run: indexed(bytes32)
    epoch: uint256
    round: uint256
    closing_block: uint256
    root: bytes32
    units: uint256
    amount: uint256
    blob: bytes32
    attesters: DynArray[address, MAX_VALIDATORS]


event Funded:
    run: indexed(bytes32)
    sender: indexed(address)
    amount: uint256


event Reclaimed:
    run: indexed(bytes32)
    to: indexed(address)
    amount: uint256


event Claimed:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    role: uint8
    # Cumulative, with this payment.
    amount: uint256
    paid: uint256


event Staked:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    sender: address
    amount: uint256


event Unbonded:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    unbond_at: uint256


event Withdrawn:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    amount: uint256


event Struck:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    number: uint256
    reason: uint256
    evidence: bytes32
    until: uint256
    attesters: DynArray[address, MAX_VALIDATORS]


event Disputed:
    run: indexed(bytes32)
    node: indexed(bytes32)
    number: uint256
    counter_evidence: bytes32
    until: uint256


event Lifted:
    run: indexed(bytes32)
    node: indexed(bytes32)
    number: uint256
    attesters: DynArray[address, MAX_VALIDATORS]


event Settled:
    run: indexed(bytes32)
    node: indexed(bytes32)
    wallet: indexed(address)
    number: uint256
    slashed: uint256


event ValidatorsProposed:
    run: indexed(bytes32)
    number: uint256
    quorum: uint256
    apply_at: uint256
    validators: DynArray[Operator, MAX_VALIDATORS]


event ValidatorsApplied:
    run: indexed(bytes32)
    number: uint256
    quorum: uint256
    validators: DynArray[Operator, MAX_VALIDATORS]


event Paused:
    run: indexed(bytes32)
    on: bool


runs: public(HashMap[bytes32, Run])
run_ids: public(HashMap[uint256, bytes32])
run_count: public(uint256)
is_paused: public(HashMap[bytes32, bool])
# Chain time of the last commit, tally or end of a pause (or of the creation).
active_at: HashMap[bytes32, uint256]

trainers: HashMap[bytes32, DynArray[Operator, MAX_TRAINERS]]
# Position + 1 of a trainer's operator address, 0 for everybody else.
trainer_rank: HashMap[bytes32, HashMap[address, uint256]]
# Sets are numbered as they were proposed, the first is 0; only one of them is in force.
validator_sets: HashMap[bytes32, HashMap[uint256, ValidatorSet]]
validator_rank: HashMap[bytes32, HashMap[uint256, HashMap[address, uint256]]]
set_count: HashMap[bytes32, uint256]
set_in_force: HashMap[bytes32, uint256]
# Number of the set that waits, zero for none.
set_waiting: HashMap[bytes32, uint256]

# Last nonce a wallet signed for a node of a run.
wallet_nonce: public(HashMap[bytes32, HashMap[bytes32, HashMap[address, uint256]]])
checkpoints: public(HashMap[bytes32, HashMap[uint256, Checkpoint]])
checkpoint_count: public(HashMap[bytes32, uint256])
leases: public(HashMap[bytes32, Lease])
final_roots: public(HashMap[bytes32, HashMap[uint256, FinalRoot]])
epoch_count: public(HashMap[bytes32, uint256])

pools: public(HashMap[bytes32, Pool])
# Cumulative amount paid of each (run, role, node, wallet), by `claim_key`.
paid_of: HashMap[bytes32, uint256]
stakes: public(HashMap[bytes32, HashMap[bytes32, HashMap[address, Stake]]])
# The last strike of a node, how many it has had, and how many of them stand (open or settled).
strikes: public(HashMap[bytes32, HashMap[bytes32, Strike]])
strike_count: public(HashMap[bytes32, HashMap[bytes32, uint256]])
standing_strikes: public(HashMap[bytes32, HashMap[bytes32, uint256]])


@external
def create_run(
    run: bytes32,
    terms: Terms,
    validators: DynArray[Operator, MAX_VALIDATORS],
    trainers: DynArray[Operator, MAX_TRAINERS],
):
    """
    @notice Open a run. The sender is recorded as its owner; terms never change.
    @param run SHA-256 of the canonical run spec
    @param terms Quorum (more than half the validators), windows in chain seconds, minimum stake, budget per epoch, token
    @param validators Node key, operator address and payout wallet of each validator; nodes and operators unique
    @param trainers The same for trainers, the leading one first
    """
    checks.must(run != empty(bytes32), "run id is zero")
    checks.must(self.runs[run].owner == empty(address), "run exists")
    checks.must(len(trainers) > 0, "no trainer")
    self._check_set(validators, terms.quorum)
    self._check_operators(trainers)
    self._check_terms(terms)

    rank: uint256 = 0
    for trainer: Operator in trainers:
        rank += 1
        self.trainer_rank[run][trainer.operator] = rank
    self.trainers[run] = trainers
    self._store_set(run, 0, terms.quorum, 0, validators)
    self.runs[run] = Run(
        owner=msg.sender,
        terms=terms,
        created_block=block.number,
        created_at=block.timestamp,
    )
    self.leases[run].term = 1
    self.active_at[run] = block.timestamp
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
    @param run Id of the run
    @param node Ed25519 public key of the node
    @param wallet Wallet that signed, or zero when the node only names one
    @param claimed Wallet named without its signature, or zero
    @param nonce Readers take the highest valid one of a node, and of equal ones the first
    @param wallet_signature EIP-712 `Registration` by `wallet`; empty when `wallet` is zero
    @param node_signature Ed25519 signature over the same fields, verified by readers
    @dev An unlinked nonce is not checked here: a stranger could send a huge one and lock the node out. A wallet's last
         nonce may come again: a stranger could send its signature first, with a junk node signature beside it.
    """
    self._must_be_open(run)
    checks.must(node != empty(bytes32), "node is zero")
    checks.must(nonce > 0 and nonce <= MAX_NONCE, "nonce")
    checks.must(len(node_signature) == 64, "node signature length")
    if wallet == empty(address):
        checks.must(len(wallet_signature) == 0, "signature without a wallet")
    else:
        checks.must(claimed == empty(address), "both linked and claimed")
        self._use_nonce(
            run,
            node,
            wallet,
            nonce,
            keccak256(abi_encode(REGISTRATION_TYPE, run, node, wallet, nonce)),
            wallet_signature,
        )
    log Registered(
        run=run, node=node, wallet=wallet, claimed=claimed, nonce=nonce, node_signature=node_signature
    )


@external
def rotate(
    run: bytes32,
    old_node: bytes32,
    new_node: bytes32,
    wallet: address,
    nonce: uint256,
    wallet_signature: Bytes[65],
    old_node_signature: Bytes[64],
    new_node_signature: Bytes[64],
):
    """
    @notice Put a new node key in the place of an old one, by the wallet or by the old key. Anyone may send it.
    @param run Id of the run
    @param old_node Ed25519 public key that is given up; its stake stays under its name and counts for the new one
    @param new_node Ed25519 public key in its place, not registered before
    @param wallet Wallet that signed, or zero when the old key did
    @param nonce As of a registration of `old_node` with `wallet`
    @param wallet_signature EIP-712 `Rotation` by `wallet`; empty when `wallet` is zero
    @param old_node_signature Ed25519 signature, verified by readers; empty when `wallet` is not zero
    @param new_node_signature Ed25519 signature, verified by readers
    """
    self._must_be_open(run)
    checks.must(old_node != empty(bytes32) and new_node != empty(bytes32), "node is zero")
    checks.must(old_node != new_node, "node repeated")
    checks.must(nonce > 0 and nonce <= MAX_NONCE, "nonce")
    checks.must(len(new_node_signature) == 64, "node signature length")
    if wallet == empty(address):
        checks.must(len(wallet_signature) == 0, "signature without a wallet")
        checks.must(len(old_node_signature) == 64, "node signature length")
    else:
        checks.must(len(old_node_signature) == 0, "both keys signed")
        self._use_nonce(
            run,
            old_node,
            wallet,
            nonce,
            keccak256(abi_encode(ROTATION_TYPE, run, old_node, new_node, wallet, nonce)),
            wallet_signature,
        )
    log Rotated(
        run=run,
        old_node=old_node,
        new_node=new_node,
        wallet=wallet,
        nonce=nonce,
        old_node_signature=old_node_signature,
        new_node_signature=new_node_signature,
    )


@external
def commit_checkpoint(run: bytes32, term: uint256, step: uint256, manifest: bytes32, parent: bytes32, final: bool):
    """
    @notice Put a checkpoint in force and renew the lease. Only the leading trainer's operator may.
    @param run Id of the run
    @param term The lease's: who was fenced off cannot commit
    @param step The last committed step plus 1, from 0
    @param manifest Digest of the checkpoint's manifest
    @param parent Digest committed before it, zero for step 0
    @param final True when no checkpoint follows
    """
    self._must_be_open(run)
    self._must_lead(run)
    checks.must(term == self.leases[run].term, "term")
    checks.must(manifest != empty(bytes32), "manifest is zero")
    count: uint256 = self.checkpoint_count[run]
    checks.must(step == count and step <= MAX_STEP, "step")
    checks.must(not self._has_ended(run), "run has ended")
    last: bytes32 = empty(bytes32)
    if count > 0:
        last = self.checkpoints[run][count - 1].manifest
    checks.must(parent == last, "parent")
    self.checkpoints[run][count] = Checkpoint(
        manifest=manifest,
        final=final,
        block=block.number,
        timestamp=block.timestamp,
    )
    self.checkpoint_count[run] = count + 1
    self.active_at[run] = block.timestamp
    self._extend_lease(run)
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
def renew(run: bytes32):
    """
    @notice Renew the lease without a checkpoint. Only the leading trainer's operator may, also while the run is paused.
    @param run Id of the run
    """
    self._must_exist(run)
    self._must_lead(run)
    self._must_have_lease(run)
    until: uint256 = self._extend_lease(run)
    log Renewed(run=run, term=self.leases[run].term, until=until)


@external
def report_lapse(run: bytes32):
    """
    @notice Say that the lease has lapsed. Only another trainer's operator may; a commit or renewal takes it back.
    @param run Id of the run
    """
    self._must_be_open(run)
    self._distance(run)
    self._must_have_lease(run)
    checks.must(block.timestamp > self.leases[run].until, "lease")
    checks.must(self.leases[run].lapse_block == 0, "lapse")
    self.leases[run].lapse_block = block.number
    log LapseReported(run=run, term=self.leases[run].term, reporter=msg.sender)


@external
def take_over(run: bytes32):
    """
    @notice Lead in a new term. The trainer next after the leader may once the lapse was reported `takeover_blocks`
            ago, so that a chain that stood still deposes nobody; each further one `lease_seconds` later.
    @param run Id of the run
    """
    self._must_be_open(run)
    distance: uint256 = self._distance(run)
    lease: Lease = self.leases[run]
    count: uint256 = len(self.trainers[run])
    checks.must(lease.lapse_block > 0, "lapse")
    checks.must(block.number >= lease.lapse_block + self.runs[run].terms.takeover_blocks, "lapse")
    checks.must(block.timestamp > lease.until + (distance - 1) * self.runs[run].terms.lease_seconds, "lease")
    leader: uint256 = (lease.leader + distance) % count
    self.leases[run].term = lease.term + 1
    self.leases[run].leader = leader
    until: uint256 = self._extend_lease(run)
    log TakenOver(run=run, term=lease.term + 1, leader=leader, until=until)


@nonreentrant
@external
def finalise(tally: Tally, attestations: DynArray[Bytes[65], MAX_VALIDATORS]):
    """
    @notice Make a tally final with the attestations of a quorum. Anyone may send it.
    @param tally What the validators attested; `epoch` is the count of final roots, `parent_root` the last root;
           `amount`, like `units`, is cumulative: at most the epoch's budget above the last, and never above the funds
    @param attestations EIP-712 `Tally`, one per operator of the validators now in force
    """
    run: bytes32 = tally.run
    self._must_be_open(run)
    epoch: uint256 = self.epoch_count[run]
    checks.must(tally.epoch == epoch, "epoch")
    previous: FinalRoot = self._previous(run, epoch)
    checks.must(tally.parent_root == previous.root, "parent root")
    checks.must(tally.root != empty(bytes32), "root is zero")
    checks.must(tally.round <= MAX_STEP, "round")
    checks.must(tally.units >= previous.units and tally.units <= MAX_AMOUNT, "units")
    checks.must(tally.amount >= previous.amount, "amount")
    checks.must(tally.amount - previous.amount <= self.runs[run].terms.epoch_budget, "amount")
    checks.must(tally.amount <= self.pools[run].funds, "funds")
    closed_at: uint256 = self._close(run, previous, tally.closing_block)
    attesters: DynArray[address, MAX_VALIDATORS] = self._attesters(
        run, keccak256(abi_encode(TALLY_TYPE, tally)), attestations
    )

    self.final_roots[run][epoch] = FinalRoot(
        closing_block=tally.closing_block,
        closed_at=closed_at,
        root=tally.root,
        units=tally.units,
        amount=tally.amount,
    )
    self.epoch_count[run] = epoch + 1
    self.pools[run].promised = tally.amount
    self.active_at[run] = block.timestamp
    log Finalised(
        run=run,
        epoch=epoch,
        round=tally.round,
        closing_block=tally.closing_block,
        root=tally.root,
        units=tally.units,
        amount=tally.amount,
        blob=tally.blob,
        attesters=attesters,
    )


@payable
@nonreentrant
@external
def fund(run: bytes32, amount: uint256):
    """
    @notice Add to a run's rewards. Anyone may; only `reclaim` gives any of it back.
    @param run Id of the run
    @param amount Base units; of the native coin exactly what is sent, of a token what arrives is credited
    """
    self._must_exist(run)
    credited: uint256 = coins.take(self.runs[run].terms.token, amount)
    self._credit(run, credited)
    log Funded(run=run, sender=msg.sender, amount=credited)


@nonreentrant
@external
def reclaim(run: bytes32, to: address):
    """
    @notice Give the owner back what no root has promised, once the run is over: final, and neither a checkpoint, a
            tally nor the end of a pause for `unbond_seconds` (without a final checkpoint for 30 days more).
    @param run Id of the run
    @param to Who is paid
    """
    self._must_be_open(run)
    self._must_own(run)
    checks.must(to != empty(address), "receiver is zero")
    patience: uint256 = self.runs[run].terms.unbond_seconds
    if not self._has_ended(run):
        patience += ABANDONED_SECONDS
    checks.must(block.timestamp >= self.active_at[run] + patience, "run is not over")
    amount: uint256 = self.pools[run].funds - self.pools[run].promised
    checks.must(amount > 0, "nothing to pay")
    self.pools[run].funds -= amount
    log Reclaimed(run=run, to=to, amount=amount)
    coins.pay(self.runs[run].terms.token, to, amount)


@nonreentrant
@external
def claim(
    run: bytes32,
    epoch: uint256,
    leaf: tree.Leaf,
    index: uint256,
    count: uint256,
    siblings: DynArray[bytes32, MAX_DEPTH],
):
    """
    @notice Pay a leaf's wallet what a final root grants it and was not paid yet. Anyone may send it.
    @param run Id of the run
    @param epoch Epoch of the final root; amounts are cumulative, so the newest covers all before
    @param leaf Role (worker 0, validator 1, relay 2, trainer 3), node, wallet, cumulative units and amount
    @param index Position of the leaf in the tree
    @param count Number of leaves
    @param siblings Proof, from the bottom up
    @dev What is paid never passes what the last root promises in total, whatever leaves a quorum put under it.
    """
    self._must_exist(run)
    checks.must(epoch < self.epoch_count[run], "epoch")
    checks.must(leaf.role <= MAX_ROLE, "role")
    checks.must(leaf.wallet != empty(address), "leaf has no wallet")
    checks.must(tree.root(leaf, index, count, siblings) == self.final_roots[run][epoch].root, "proof")
    key: bytes32 = self._claim_key(run, leaf.role, leaf.node, leaf.wallet)
    amount: uint256 = convert(leaf.amount, uint256)
    before: uint256 = self.paid_of[key]
    checks.must(amount > before, "nothing to pay")
    due: uint256 = amount - before
    checks.must(self.pools[run].paid + due <= self.pools[run].promised, "root is overdrawn")
    self.paid_of[key] = amount
    self.pools[run].paid += due
    log Claimed(run=run, node=leaf.node, wallet=leaf.wallet, role=leaf.role, amount=amount, paid=due)
    coins.pay(self.runs[run].terms.token, leaf.wallet, due)


@payable
@nonreentrant
@external
def stake(run: bytes32, node: bytes32, wallet: address, amount: uint256):
    """
    @notice Put coins of `wallet` behind `node`. Anyone may, for any wallet; only the wallet gets them back.
    @param run Id of the run
    @param node Ed25519 public key of the node
    @param wallet Who unbonds and is paid; while it is unbonding only the wallet itself can add, which bonds all again
    @param amount Base units; of the native coin exactly what is sent, of a token what arrives is credited
    """
    self._must_be_open(run)
    checks.must(node != empty(bytes32), "node is zero")
    checks.must(wallet != empty(address), "wallet is zero")
    checks.must(self.standing_strikes[run][node] == 0, "node is struck")
    held: Stake = self.stakes[run][node][wallet]
    checks.must(held.unbond_at == 0 or msg.sender == wallet, "unbonding")
    credited: uint256 = coins.take(self.runs[run].terms.token, amount)
    total: uint256 = held.amount + credited
    checks.must(total >= self.runs[run].terms.min_stake, "below the minimum stake")
    checks.must(total <= MAX_AMOUNT, "too much")
    self.stakes[run][node][wallet] = Stake(amount=total, unbond_at=0)
    log Staked(run=run, node=node, wallet=wallet, sender=msg.sender, amount=credited)


@nonreentrant
@external
def unbond(run: bytes32, node: bytes32):
    """
    @notice Begin to take the sender's stake from a node. It stays at risk for `unbond_seconds`.
    @param run Id of the run
    @param node Ed25519 public key of the node
    """
    held: Stake = self.stakes[run][node][msg.sender]
    checks.must(held.amount > 0, "no stake")
    checks.must(held.unbond_at == 0, "unbonding")
    unbond_at: uint256 = block.timestamp + self.runs[run].terms.unbond_seconds
    self.stakes[run][node][msg.sender].unbond_at = unbond_at
    log Unbonded(run=run, node=node, wallet=msg.sender, unbond_at=unbond_at)


@nonreentrant
@external
def withdraw(run: bytes32, node: bytes32):
    """
    @notice Pay the sender its unbonded stake. Refused while a strike against (node, sender) is open.
    @param run Id of the run
    @param node Ed25519 public key of the node
    """
    held: Stake = self.stakes[run][node][msg.sender]
    checks.must(held.amount > 0, "no stake")
    checks.must(held.unbond_at > 0 and block.timestamp >= held.unbond_at, "bonded")
    strike: Strike = self.strikes[run][node]
    checks.must(not (strike.open and strike.wallet == msg.sender), "stake is frozen")
    self.stakes[run][node][msg.sender] = empty(Stake)
    log Withdrawn(run=run, node=node, wallet=msg.sender, amount=held.amount)
    coins.pay(self.runs[run].terms.token, msg.sender, held.amount)


@nonreentrant
@external
def strike(
    run: bytes32,
    node: bytes32,
    wallet: address,
    number: uint256,
    reason: uint256,
    evidence: bytes32,
    attestations: DynArray[Bytes[65], MAX_VALIDATORS],
):
    """
    @notice Eject a node and freeze a stake of it, by a quorum of validators. Anyone may send it.
    @param run Id of the run
    @param node Ed25519 public key of the node
    @param wallet Whose stake in the node is at risk; zero when the node has none
    @param number How many strikes the node has had: no attestation counts twice
    @param reason Number of the reason in the protocol
    @param evidence Digest of the evidence
    @param attestations EIP-712 `Strike`, one per operator of the validators now in force
    """
    self._must_be_open(run)
    checks.must(node != empty(bytes32), "node is zero")
    checks.must(not self.strikes[run][node].open, "strike is open")
    checks.must(number == self.strike_count[run][node], "number")
    checks.must(reason <= MAX_REASON, "reason")
    checks.must(evidence != empty(bytes32), "evidence is zero")
    attesters: DynArray[address, MAX_VALIDATORS] = self._attesters(
        run, keccak256(abi_encode(STRIKE_TYPE, run, node, wallet, number, reason, evidence)), attestations
    )
    until: uint256 = block.timestamp + self.runs[run].terms.dispute_seconds
    self.strikes[run][node] = Strike(wallet=wallet, number=number, until=until, disputed=False, open=True)
    self.strike_count[run][node] = number + 1
    self.standing_strikes[run][node] += 1
    log Struck(
        run=run,
        node=node,
        wallet=wallet,
        number=number,
        reason=reason,
        evidence=evidence,
        until=until,
        attesters=attesters,
    )


@nonreentrant
@external
def dispute(run: bytes32, node: bytes32, counter_evidence: bytes32):
    """
    @notice Answer a strike, once, inside its window; that makes the window `dispute_seconds` longer.
    @param run Id of the run
    @param node The node struck; only the wallet named in the strike may send it
    @param counter_evidence Digest of the answer
    """
    held: Strike = self._open_strike(run, node)
    checks.must(msg.sender == held.wallet, "not the wallet")
    checks.must(not held.disputed, "disputed before")
    checks.must(block.timestamp <= held.until, "window is over")
    checks.must(counter_evidence != empty(bytes32), "evidence is zero")
    until: uint256 = held.until + self.runs[run].terms.dispute_seconds
    self.strikes[run][node].disputed = True
    self.strikes[run][node].until = until
    log Disputed(run=run, node=node, number=held.number, counter_evidence=counter_evidence, until=until)


@nonreentrant
@external
def lift(run: bytes32, node: bytes32, number: uint256, attestations: DynArray[Bytes[65], MAX_VALIDATORS]):
    """
    @notice Take an open strike back, by a quorum of validators. Anyone may send it.
    @param run Id of the run
    @param node The node struck
    @param number The strike's
    @param attestations EIP-712 `Lift`, one per operator of the validators now in force
    """
    held: Strike = self._open_strike(run, node)
    checks.must(number == held.number, "number")
    attesters: DynArray[address, MAX_VALIDATORS] = self._attesters(
        run, keccak256(abi_encode(LIFT_TYPE, run, node, number)), attestations
    )
    self.strikes[run][node].open = False
    self.standing_strikes[run][node] -= 1
    log Lifted(run=run, node=node, number=number, attesters=attesters)


@nonreentrant
@external
def settle(run: bytes32, node: bytes32):
    """
    @notice Close a strike whose window has passed: the stake goes to the run's funds, never to who struck.
    @param run Id of the run
    @param node The node struck
    """
    held: Strike = self._open_strike(run, node)
    checks.must(block.timestamp > held.until, "window is open")
    slashed: uint256 = self.stakes[run][node][held.wallet].amount
    self.strikes[run][node].open = False
    self.stakes[run][node][held.wallet] = empty(Stake)
    self._credit(run, slashed)
    log Settled(run=run, node=node, wallet=held.wallet, number=held.number, slashed=slashed)


@external
def propose_validators(run: bytes32, validators: DynArray[Operator, MAX_VALIDATORS], quorum: uint256):
    """
    @notice Announce another set of validators, in place of one that waits. Only the owner may.
    @param run Id of the run
    @param validators As of `create_run`
    @param quorum More than half of them
    """
    self._must_exist(run)
    self._must_own(run)
    self._check_set(validators, quorum)
    number: uint256 = self.set_count[run]
    apply_at: uint256 = block.timestamp + self.runs[run].terms.change_seconds
    self._store_set(run, number, quorum, apply_at, validators)
    self.set_waiting[run] = number
    log ValidatorsProposed(run=run, number=number, quorum=quorum, apply_at=apply_at, validators=validators)


@external
def apply_validators(run: bytes32):
    """
    @notice Put the announced validators in force, `change_seconds` after they were announced. Anyone may send it.
    @param run Id of the run
    """
    number: uint256 = self.set_waiting[run]
    checks.must(number > 0, "no change waits")
    changed: ValidatorSet = self.validator_sets[run][number]
    checks.must(block.timestamp >= changed.apply_at, "change must wait")
    self.set_in_force[run] = number
    self.set_waiting[run] = 0
    log ValidatorsApplied(run=run, number=number, quorum=changed.quorum, validators=changed.validators)


@external
def pause(run: bytes32, on: bool):
    """
    @notice Stop or resume commits, take-overs, registrations, stakes, strikes and tallies. Only the owner may. Claims,
            unbonding, withdrawals, disputes and what ends a strike go on.
    @param run Id of the run
    @param on Whether to stop
    """
    self._must_exist(run)
    self._must_own(run)
    checks.must(self.is_paused[run] != on, "nothing changes")
    self.is_paused[run] = on
    if not on:
        self.active_at[run] = block.timestamp
    log Paused(run=run, on=on)


@view
@external
def operators(
    run: bytes32,
) -> (DynArray[Operator, MAX_VALIDATORS], DynArray[Operator, MAX_TRAINERS]):
    """
    @notice The validators a run was created with, and its trainers
    @param run Id of the run
    """
    return self.validator_sets[run][0].validators, self.trainers[run]


@view
@external
def validators_in_force(run: bytes32) -> ValidatorSet:
    """
    @notice The validators whose attestations count now, and their quorum
    @param run Id of the run
    """
    return self.validator_sets[run][self.set_in_force[run]]


@view
@external
def claimed(run: bytes32, role: uint8, node: bytes32, wallet: address) -> uint256:
    """
    @notice Cumulative amount paid to a wallet for a node's work in a role
    @param run Id of the run
    @param role Worker 0, validator 1, relay 2, trainer 3
    @param node Ed25519 public key of the node
    @param wallet Who was paid
    """
    return self.paid_of[self._claim_key(run, role, node, wallet)]


@view
@external
def domain_separator() -> bytes32:
    """
    @notice EIP-712 domain of this contract on this chain
    """
    return signatures.domain()


@view
@external
def checkpoints_until(run: bytes32, number: uint256) -> uint256:
    """
    @notice How many checkpoints were committed in blocks up to and including `number`
    @param run Id of the run
    @param number Block number
    """
    return self._checkpoints_until(run, number)


@view
def _must_exist(run: bytes32):
    checks.must(self.runs[run].owner != empty(address), "unknown run")


@view
def _must_be_open(run: bytes32):
    self._must_exist(run)
    checks.must(not self.is_paused[run], "run is paused")


@view
def _must_own(run: bytes32):
    checks.must(msg.sender == self.runs[run].owner, "not the owner")


@view
def _must_lead(run: bytes32):
    checks.must(self.trainer_rank[run][msg.sender] == self.leases[run].leader + 1, "not the leading trainer")


@view
def _must_have_lease(run: bytes32):
    """
    @dev A lease runs from checkpoint 0 to the final one
    """
    checks.must(self.leases[run].until > 0, "lease has not begun")
    checks.must(not self._has_ended(run), "run has ended")


@view
def _has_ended(run: bytes32) -> bool:
    count: uint256 = self.checkpoint_count[run]
    return count > 0 and self.checkpoints[run][count - 1].final


@view
def _distance(run: bytes32) -> uint256:
    """
    @dev How many places after the leader the sender stands among the trainers, at least 1
    """
    rank: uint256 = self.trainer_rank[run][msg.sender]
    checks.must(rank > 0, "not a trainer")
    leader: uint256 = self.leases[run].leader + 1
    checks.must(rank != leader, "leads already")
    count: uint256 = len(self.trainers[run])
    return (rank + count - leader) % count


def _extend_lease(run: bytes32) -> uint256:
    until: uint256 = block.timestamp + self.runs[run].terms.lease_seconds
    self.leases[run].until = until
    self.leases[run].lapse_block = 0
    return until


def _credit(run: bytes32, amount: uint256):
    funds: uint256 = self.pools[run].funds + amount
    checks.must(funds <= MAX_AMOUNT, "too much")
    self.pools[run].funds = funds


@pure
def _claim_key(run: bytes32, role: uint8, node: bytes32, wallet: address) -> bytes32:
    return keccak256(abi_encode(run, role, node, wallet))


@view
def _open_strike(run: bytes32, node: bytes32) -> Strike:
    held: Strike = self.strikes[run][node]
    checks.must(held.open, "no strike is open")
    return held


def _use_nonce(
    run: bytes32,
    node: bytes32,
    wallet: address,
    nonce: uint256,
    struct_hash: bytes32,
    signature: Bytes[65],
):
    """
    @dev Refuse an older nonce than the last, and any signature but the wallet's
    """
    checks.must(nonce >= self.wallet_nonce[run][node][wallet], "nonce")
    checks.must(signatures.recover(signatures.digest(struct_hash), signature) == wallet, "wallet signature")
    self.wallet_nonce[run][node][wallet] = nonce


@view
def _check_terms(terms: Terms):
    """
    @dev Refuse windows of no length and numbers that could overflow
    """
    checks.must(terms.epoch_checkpoints > 0 and terms.epoch_checkpoints <= MAX_STEP, "epoch checkpoints")
    checks.must(terms.epoch_max_seconds > 0 and terms.epoch_max_seconds <= MAX_STEP, "epoch seconds")
    checks.must(terms.round_seconds > 0 and terms.round_seconds <= MAX_STEP, "round seconds")
    checks.must(terms.lease_seconds > 0 and terms.lease_seconds <= MAX_STEP, "lease seconds")
    checks.must(terms.takeover_blocks > 0 and terms.takeover_blocks <= MAX_STEP, "takeover blocks")
    checks.must(terms.unbond_seconds > 0 and terms.unbond_seconds <= MAX_STEP, "unbond seconds")
    checks.must(terms.dispute_seconds > 0 and terms.dispute_seconds <= MAX_STEP, "dispute seconds")
    checks.must(terms.change_seconds > 0 and terms.change_seconds <= MAX_STEP, "change seconds")
    checks.must(terms.min_stake <= MAX_AMOUNT, "minimum stake")
    checks.must(terms.epoch_budget <= MAX_AMOUNT, "epoch budget")
    checks.must(terms.token == empty(address) or terms.token.is_contract, "token")


@pure
def _check_set(validators: DynArray[Operator, MAX_VALIDATORS], quorum: uint256):
    checks.must(len(validators) > 0, "no validator")
    checks.must(quorum <= len(validators) and quorum * 2 > len(validators), "quorum")
    self._check_operators(validators)


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


def _store_set(
    run: bytes32,
    number: uint256,
    quorum: uint256,
    apply_at: uint256,
    validators: DynArray[Operator, MAX_VALIDATORS],
):
    rank: uint256 = 0
    for validator: Operator in validators:
        rank += 1
        self.validator_rank[run][number][validator.operator] = rank
    self.validator_sets[run][number] = ValidatorSet(quorum=quorum, apply_at=apply_at, validators=validators)
    self.set_count[run] = number + 1


@view
def _previous(run: bytes32, epoch: uint256) -> FinalRoot:
    """
    @dev The last final root, or for epoch 0 the state at the run's creation
    """
    if epoch > 0:
        return self.final_roots[run][epoch - 1]
    created: FinalRoot = empty(FinalRoot)
    created.closing_block = self.runs[run].created_block
    created.closed_at = self.runs[run].created_at
    return created


@view
def _close(run: bytes32, previous: FinalRoot, closing_block: uint256) -> uint256:
    """
    @dev Refuse a closing block at which no epoch can have closed, and return a chain time no later than it.
         Necessary conditions only: that it is the first such block, the attesting validators judge (an epoch in which
         nobody earned is not written, so later blocks must stay admissible).
    """
    checks.must(closing_block > previous.closing_block and closing_block <= block.number, "closing block")
    before: uint256 = self._checkpoints_until(run, previous.closing_block)
    until: uint256 = self._checkpoints_until(run, closing_block)
    ended: bool = until > 0 and self.checkpoints[run][until - 1].final
    if until > before and (ended or until - before >= self.runs[run].terms.epoch_checkpoints):
        return self.checkpoints[run][until - 1].timestamp
    patience: uint256 = self.runs[run].terms.epoch_max_seconds
    if ended:
        # Nothing is left to wait for but the verdicts still open.
        patience = min(patience, self.runs[run].terms.round_seconds)
    checks.must(block.timestamp >= previous.closed_at + patience, "epoch is open")
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
    run: bytes32, struct_hash: bytes32, attestations: DynArray[Bytes[65], MAX_VALIDATORS]
) -> DynArray[address, MAX_VALIDATORS]:
    """
    @dev The distinct operators of validators in force who signed, at least a quorum; one bad signature refuses all
    """
    number: uint256 = self.set_in_force[run]
    digest: bytes32 = signatures.digest(struct_hash)
    attesters: DynArray[address, MAX_VALIDATORS] = []
    seen: uint256 = 0
    for attestation: Bytes[65] in attestations:
        signer: address = signatures.recover(digest, attestation)
        rank: uint256 = self.validator_rank[run][number][signer]
        checks.must(signer != empty(address) and rank > 0, "not a validator")
        checks.must(seen & (1 << rank) == 0, "attester repeated")
        seen |= 1 << rank
        attesters.append(signer)
    checks.must(len(attesters) >= self.validator_sets[run][number].quorum, "too few attestations")
    return attesters
