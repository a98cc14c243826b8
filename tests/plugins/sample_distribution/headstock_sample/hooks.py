"""Puts the backend first in the automatic choice on CPUs."""

from headstock.plugins import Placement, hookimpl


@hookimpl
def headstock_rank_backends(device):
    return [Placement(backend="sample", before="cpu")] if device.platform == "cpu" else []
