"""Raw HTTP clients that behave badly."""

from __future__ import annotations

import json
import socket
from typing import Any

from .http_server import Served


def post(server: Served, path: str, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    connection = server.connect()
    send(connection, path, body)
    return connection


def send(connection: socket.socket, path: str, body: dict[str, Any]) -> None:
    """Write a request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


def hang_up(connection: socket.socket) -> None:
    """As a client that is killed: what comes is answered with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
