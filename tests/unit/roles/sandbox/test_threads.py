"""Counting threads from outside, where the kernel permits it and where it does not."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from roles.sandbox.program import ROOT, why_threadless, why_unavailable
from roles.sandbox.threads import take_over

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
LISTENED_TO = """
import socket
from roles.sandbox.seccomp import forbid_new_privileges, listen_to_clones
from roles.sandbox.threads import hand_over
inside, outside = socket.socketpair()
forbid_new_privileges()
listen_to_clones()
print(hand_over(inside.detach()).name, outside.recv(1))
"""


def test_hand_over__where_somebody_listens_already_there_are_no_threads() -> None:
    """As in a container whose own supervisor listens."""
    environment = {"PYTHONPATH": ROOT}
    done = subprocess.run([sys.executable, "-c", LISTENED_TO], capture_output=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == (b"NOTHING b''\n", b"")


def test_why_threadless__where_somebody_listens_already() -> None:
    """A program that needs a thread would fail here, and succeed elsewhere."""
    assert why_threadless() is None
    program = """
from roles.sandbox.program import why_threadless, why_unavailable
from roles.sandbox.seccomp import forbid_new_privileges, listen_to_clones
forbid_new_privileges()
listen_to_clones()
print(why_unavailable(), why_threadless())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env={"PYTHONPATH": ROOT})
    assert done.stdout.startswith(b"None programs cannot start threads here"), done.stderr


def test_take_over__of_one_who_has_nothing_to_give() -> None:
    inside, outside = socket.socketpair()
    inside.close()
    with outside:
        assert take_over(outside) is None
