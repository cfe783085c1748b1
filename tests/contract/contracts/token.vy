# pragma version 0.4.3
"""
@title An ERC-20 that misbehaves on request
@notice Anyone can mint. It may take a fee, answer false, keep what it is given, or call somebody while it moves coins.
"""

balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])
fee_permille: public(uint256)
refuses: public(bool)
swallows: public(bool)
target: address
data: Bytes[2048]
reentered: public(bool)
re_entry_succeeded: public(bool)


@external
def mint(to: address, amount: uint256):
    self.balanceOf[to] += amount


@external
def approve(spender: address, amount: uint256) -> bool:
    self.allowance[msg.sender][spender] = amount
    return True


@external
def behave(fee_permille: uint256, refuses: bool, swallows: bool):
    self.fee_permille = fee_permille
    self.refuses = refuses
    self.swallows = swallows


@external
def call_back(target: address, data: Bytes[2048]):
    """
    @notice Call `target` during the next transfers
    """
    self.target = target
    self.data = data


@external
def transfer(to: address, amount: uint256) -> bool:
    if self.refuses:
        return False
    self._move(msg.sender, to, amount)
    return True


@external
def transferFrom(sender: address, to: address, amount: uint256) -> bool:
    if self.refuses:
        return False
    self.allowance[sender][msg.sender] -= amount
    self._move(sender, to, amount)
    return True


def _move(sender: address, to: address, amount: uint256):
    self.balanceOf[sender] -= amount
    if not self.swallows:
        self.balanceOf[to] += amount - amount * self.fee_permille // 1000
    if self.target != empty(address):
        self.reentered = True
        self.re_entry_succeeded = raw_call(self.target, self.data, revert_on_failure=False)
