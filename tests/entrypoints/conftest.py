"""Fixtures for tests of what users call."""

from __future__ import annotations

import shutil

import pytest

from support.tiny import tiny_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """Path of a small random model without a chat template."""
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture(scope="session")
def chatty(tiny, tmp_path_factory) -> str:
    """The same with a chat template that shows each message with its role, and a bar before the assistant speaks."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("chatty") / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}|{% endif %}"
    )
    return str(folder)
