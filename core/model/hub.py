"""Models named like repositories of the Hugging Face Hub: taken from the local cache, or else downloaded."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""``owner/name``."""
DESCRIPTION = ["*.json", "*.jinja", "tokenizer.model", "merges.txt"]
"""What says what a model is."""
WANTED = [*DESCRIPTION, "*.safetensors"]
"""What a model is made of here: no pickle, no code."""
CONNECT_SECONDS = 5.0


def snapshot(name: str, *, weights: bool = True) -> Path:
    """The local folder of Hub repository `name`, downloaded first where it is not in the Hub's own cache.

    Without `weights`, a folder that may lack them. Raises `ModelError` where it is not here and cannot be fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted = WANTED if weights else DESCRIPTION
    try:
        return _complete(snapshot_download(name, allow_patterns=wanted, local_files_only=True), name, weights)
    except FileNotFoundError:  # the client's own "not in the cache" included
        pass
    except HFValidationError as error:
        raise ModelError(f"model {name!r} is neither a folder here nor a valid Hub name: {error}") from error
    try:
        return _complete(snapshot_download(name, allow_patterns=wanted, etag_timeout=CONNECT_SECONDS), name, weights)
    except Exception as error:  # the Hub's client raises its own, its HTTP library's and the system's errors alike
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"model {name!r} is not on this machine and could not be fetched from the Hugging Face Hub.\n"
            f"  no folder ./{name}, and no complete snapshot in the Hub's cache\n"
            f"  the Hub's client said: {type(error).__name__}: {reason}\n"
            f"  with a network: hf download {name}; without one: pass the path of a local folder, or use smollm2"
        ) from error


def _complete(folder: str, name: str, weights: bool) -> Path:
    path = Path(folder)
    if not (path / "config.json").is_file() or (weights and not any(path.glob("*.safetensors"))):
        raise FileNotFoundError(f"{name}: config.json or *.safetensors is missing in {folder}")
    return path
