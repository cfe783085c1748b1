"""Limits how many threads a confined program starts: it must ask for each, and the process that runs it counts.

A thread costs kernel memory that no limit on address space covers, and limits on the number of processes apply to the
user, not the program, and not to root. So `clone` waits for an answer from outside (seccomp's user notification, Linux
5.5). Both sides are here: `hand_over` inside, `ThreadCount` outside. Stdlib only.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import fcntl
import os
import select
import struct

from roles.sandbox.seccomp import Starts, listen_to_clones

RECEIVE, SEND = 0xC0502100, 0xC0182101  # from linux/seccomp.h
QUESTION = 80
GO_ON = 1
DESCRIPTOR = struct.Struct("i")


def hand_over(channel: int) -> Starts:
    """Send the listener by which the outside counts threads. Returns what may then be started. Raises
    OSError when sending fails."""
    with contextlib.closing(_socket.socket(fileno=channel)) as outside:
        try:
            listener = listen_to_clones()
        except OSError:  # a container's own supervisor is listening: the program runs without threads
            return Starts.NOTHING
        try:
            outside.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, DESCRIPTOR.pack(listener))])
        finally:
            os.close(listener)
    return Starts.THREADS


def take_over(channel: _socket.socket) -> int | None:
    """The listener that the inside sent; None if it has none."""
    _, given, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(DESCRIPTOR.size), _socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in given:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return int(DESCRIPTOR.unpack(data[: DESCRIPTOR.size])[0])
    return None


class ThreadCount:
    """Permits the first `left` threads and stops at the next."""

    def __init__(self, listener: int, left: int) -> None:
        self._listener, self._left = listener, left
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def answer(self) -> bool:
        """Answer a waiting request. False when there is nothing more to answer: once the listener is closed, the kernel
        refuses the next thread as well as a request still waiting."""
        if not any(event & select.POLLIN for _, event in self._poll.poll(0)):
            return False  # hung up: the requesting process has ended, and receiving would block for ever
        if self._left <= 0:
            return False
        question = bytearray(QUESTION)
        try:
            fcntl.ioctl(self._listener, RECEIVE, question)
            fcntl.ioctl(self._listener, SEND, struct.pack("=QqiI", *struct.unpack_from("=Q", question), 0, 0, GO_ON))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the requester has ended in the meantime
                return False
        self._left -= 1
        return True
