"""Messages between processes over a socket: JSON, with its length before it, and no longer than a limit."""

from __future__ import annotations

import json
import socket
import time

from faithcheck.json_object import Json

LIMIT = 2**26
"""The most bytes of a message."""


class Closed(ConnectionError):
    """The other end of the socket is closed."""


class NoMessage(ValueError):
    """What came is no message: it is longer than `LIMIT`, or no JSON object."""


def send(channel: socket.socket, message: Json) -> None:
    """Send a message.

    Raises:
        Closed: the other end is closed.
    """
    content = json.dumps(message).encode()
    try:
        channel.settimeout(None)
        channel.sendall(len(content).to_bytes(8, "big") + content)
    except OSError as error:
        raise Closed(str(error)) from error


def receive(channel: socket.socket, seconds: float | None = None) -> Json:
    """Receive a message.

    Args:
        channel: the socket.
        seconds: how long to wait for the whole message; None: for ever.

    Raises:
        Closed: the other end is closed.
        NoMessage: see there.
        TimeoutError: the message did not come in time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    length = int.from_bytes(_read(channel, 8, end), "big")
    if length > LIMIT:
        raise NoMessage(f"a message of {length:,} bytes, above the limit of {LIMIT:,}")
    try:
        message = json.loads(_read(channel, length, end))
    except ValueError as error:
        raise NoMessage("no JSON") from error
    if not isinstance(message, dict):
        raise NoMessage("no JSON object")
    return message


def _read(channel: socket.socket, length: int, end: float | None) -> bytes:
    content = bytearray()
    while len(content) < length:
        channel.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
        try:
            part = channel.recv(min(length - len(content), 2**20))
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("the other end is closed")
        content += part
    return bytes(content)
