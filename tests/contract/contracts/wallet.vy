# pragma version 0.4.3
"""
@title A wallet that is a contract: it may refuse coins, or call somebody when it receives some
"""

refuses: public(bool)
target: address
data: Bytes[2048]
reentered: public(bool)
re_entry_succeeded: public(bool)


@external
def behave(refuses: bool):
    self.refuses = refuses


@external
def call_back(target: address, data: Bytes[2048]):
    """
    @notice Call `target` whenever coins come in
    """
    self.target = target
    self.data = data


@payable
@external
def execute(target: address, data: Bytes[2048]):
    """
    @notice Make a call as this wallet
    """
    raw_call(target, data, value=msg.value)


@payable
@external
def __default__():
    assert not self.refuses, "refused"
    if self.target != empty(address):
        self.reentered = True
        self.re_entry_succeeded = raw_call(self.target, self.data, revert_on_failure=False)
