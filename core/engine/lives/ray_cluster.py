"""The Ray cluster: joining it or starting one, and what its nodes need to run what we run."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from typing import Any

from ...errors import HeadstockError
from .shipping import shipped_folder

OBJECT_STORE = 128 * 2**20
"""Bytes of shared memory for a cluster of our own: what goes through it is small."""
KNOCK_SECONDS = 10.0
OURS = "HEADSTOCK_"
"""Environment variables with this prefix go along to the nodes (vllm-project/vllm#14099)."""
_CONNECTING = threading.Lock()


def node_environment() -> dict[str, str]:
    """Environment variables for what runs on the nodes: ours, and on this machine the path to the very same code."""
    environ = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    if not os.environ.get("RAY_ADDRESS"):
        environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return environ


def connect(asker: str = "engine=ray") -> Any:
    """Ray, connected to a cluster; raises `HeadstockError` where it is not installed or finds none.

    The cluster that ``RAY_ADDRESS`` names is sent the code that this process runs. Whoever has connected Ray before has
    to see to it that nodes have Headstock.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise HeadstockError(f"{asker} needs Ray.\n  install it with: pip install 'headstock[ray]'") from error
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address := os.environ.get("RAY_ADDRESS"):
        _knock(address)
        options |= {"address": address, "runtime_env": {"working_dir": shipped_folder()}}
    else:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    with _CONNECTING:
        try:
            if not ray.is_initialized():  # another engine may have been quicker
                ray.init(**options)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            raise HeadstockError(f"no Ray cluster can be joined or started: {error}") from error
    return ray


def _knock(address: str) -> None:
    """Raise `HeadstockError` where nobody is at ``HOST:PORT``: Ray itself goes on trying for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise HeadstockError(f"no Ray cluster can be joined: nobody answers at {address}: {error}") from error
