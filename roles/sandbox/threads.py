"""How many threads a confined program starts: it asks for each, and whoever runs it counts.

A thread costs the kernel memory that no limit on address space sees, and limits on the number of processes are the user's,
not the program's, and not root's. So `clone` waits for an answer from outside (seccomp's user notification, Linux 5.5). Both
sides are here: `hand_over` inside, `ThreadCount` outside. Stdlib only.
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
    """Give the outside what it counts threads by; what may then be started. Raises OSError where it cannot be sent."""
    with contextlib.closing(_socket.socket(fileno=channel)) as outside:
        try:
            listener = listen_to_clones()
        except OSError:  # in a container whose own supervisor listens: a program may go without threads
            return Starts.NOTHING
        try:
            outside.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, DESCRIPTOR.pack(listener))])
        finally:
            os.close(listener)
    return Starts.THREADS


def take_over(channel: _socket.socket) -> int | None:
    """What the inside handed over; None where it has nothing."""
    _, given, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(DESCRIPTOR.size), _socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in given:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return int(DESCRIPTOR.unpack(data[: DESCRIPTOR.size])[0])
    return None


class ThreadCount:
    """Says yes to the first `left` threads, and is done with the next."""

    def __init__(self, listener: int, left: int) -> None:
        self._listener, self._left = listener, left
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def answer(self) -> bool:
        """Answer who asks. False when there is nothing more to answer: the next thread is refused by the kernel as soon as
        the listener is closed, and so is who asked last."""
        if not any(event & select.POLLIN for _, event in self._poll.poll(0)):
            return False  # hung up: who could ask has ended, and to receive would wait for ever
        if self._left <= 0:
            return False
        question = bytearray(QUESTION)
        try:
            fcntl.ioctl(self._listener, RECEIVE, question)
            fcntl.ioctl(self._listener, SEND, struct.pack("=QqiI", *struct.unpack_from("=Q", question), 0, 0, GO_ON))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # it has ended meanwhile
                return False
        self._left -= 1
        return True
