"""JSON messages over a local socket between a node and its leading rank."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

_HEADER = struct.Struct(">Q")
LONGEST = 2**32
"""Maximum bytes of a message: a batch of 4,096 completions of 32,000 tokens takes a fifth of it."""
LOOK_SECONDS = 0.5


class PipeClosed(ConnectionError):
    """The other side is gone."""


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message. Raises PipeClosed."""
    data = json.dumps(message).encode()
    try:
        connection.settimeout(None)
        connection.sendall(_HEADER.pack(len(data)) + data)
    except OSError as error:
        raise PipeClosed(str(error)) from error


def receive(connection: socket.socket, *, alive: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Wait for one message while `alive` returns True. Raises PipeClosed."""
    (length,) = _HEADER.unpack(_exactly(connection, _HEADER.size, alive))
    if length > LONGEST:
        raise PipeClosed(f"a message of {length} bytes")
    message: dict[str, Any] = json.loads(_exactly(connection, length, alive))
    return message


def _exactly(connection: socket.socket, count: int, alive: Callable[[], bool]) -> bytes:
    connection.settimeout(LOOK_SECONDS)
    data = bytearray()
    while len(data) < count:
        try:
            part = connection.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            if not alive():
                raise PipeClosed("the process has ended") from None
            continue
        except OSError as error:
            raise PipeClosed(str(error)) from error
        if not part:
            raise PipeClosed("closed by the other side")
        data += part
    return bytes(data)
