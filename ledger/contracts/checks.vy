# pragma version 0.4.3
"""
@title Refusals
@notice One place that reverts with a reason: written out at each check, the texts alone would fill half a contract.
"""


@pure
@internal
def must(condition: bool, reason: String[32]):
    """
    @notice Revert with `reason` unless the condition holds
    """
    assert condition, reason
