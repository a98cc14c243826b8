"""Models named like repositories of the Hugging Face Hub: taken from the local cache, or else downloaded."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""``owner/name``."""
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
"""What a model is made of here: no pickle, no code."""
CONNECT_SECONDS = 5.0


def snapshot(name: str) -> Path:
    """The local folder of Hub repository `name`, downloaded first where it is not in the Hub's own cache.

    Raises `ModelError` where it is not here and cannot be fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return _with_config(snapshot_download(name, allow_patterns=WANTED, local_files_only=True), name)
    except FileNotFoundError:  # the client's own "not in the cache" included
        pass
    except HFValidationError as error:
        raise ModelError(f"model {name!r} is neither a folder here nor a valid Hub name: {error}") from error
    try:
        return _with_config(snapshot_download(name, allow_patterns=WANTED, etag_timeout=CONNECT_SECONDS), name)
    except Exception as error:  # the Hub's client raises its own, its HTTP library's and the system's errors alike
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"model {name!r} is not on this machine and could not be fetched from the Hugging Face Hub.\n"
            f"  no folder ./{name}, and no complete snapshot in the Hub's cache\n"
            f"  the Hub's client said: {type(error).__name__}: {reason}\n"
            f"  with a network: hf download {name}; without one: pass the path of a local folder, or use smollm2"
        ) from error


def _with_config(folder: str, name: str) -> Path:
    path = Path(folder)
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise FileNotFoundError(f"{name}: config.json or *.safetensors is missing in {folder}")
    return path
