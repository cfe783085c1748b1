# pragma version 0.4.3
"""
@title Coins in and out
@notice Native coin (token zero) or an ERC-20, also one that returns nothing, false, or takes a fee. Tokens whose
        balances change by themselves (rebasing) are not supported.
@dev    Callers hold the reentrancy lock and have written all their state before they pay.
"""

from ethereum.ercs import IERC20

import checks


@payable
@internal
def take(token: address, amount: uint256) -> uint256:
    """
    @notice Take coins from the sender
    @param amount What the sender gives; with the native coin exactly the value sent
    @return What arrived: less than `amount` where the token takes a fee
    """
    checks.must(amount > 0, "amount is zero")
    if token == empty(address):
        checks.must(msg.value == amount, "value")
        return amount
    checks.must(msg.value == 0, "value")
    before: uint256 = staticcall IERC20(token).balanceOf(self)
    checks.must(extcall IERC20(token).transferFrom(msg.sender, self, amount, default_return_value=True), "token transfer")
    held: uint256 = staticcall IERC20(token).balanceOf(self)
    checks.must(held > before, "nothing received")
    return held - before


@internal
def pay(token: address, to: address, amount: uint256):
    """
    @notice Pay coins out, or revert
    """
    if token == empty(address):
        checks.must(raw_call(to, b"", value=amount, revert_on_failure=False), "payment")
    else:
        checks.must(extcall IERC20(token).transfer(to, amount, default_return_value=True), "token transfer")
