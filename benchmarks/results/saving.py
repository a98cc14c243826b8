"""What ``--save`` does, in two halves: the store is opened before anything is measured, and filled after."""

from __future__ import annotations

from .documents import Document, read_document
from .store import Store


def stored(wanted: bool) -> Store | None:
    """The store where `wanted`; raises `InvalidInput` before minutes of work whose result could not be kept."""
    return Store() if wanted else None


def keep(store: Store | None, document: Document) -> None:
    """Put one of our documents into `store`, if there is one, and close it."""
    if store is not None:
        with store:
            put(store, document)


def put(store: Store, document: Document) -> None:
    """Put one of our documents into `store`, and say under which id."""
    from ...entrypoints.cli.console import note

    for run in read_document(document) or ():
        store.add(run)
        note(f"kept as run {run.id} in {store.path}")
