"""The page on architecture speaks of the house as it is."""

from __future__ import annotations

import builtins
import re
import subprocess

import headstock
from headstock.core import attention, engine, errors, scheduler
from support.pages import page
from support.tree import ROOT, modules

PAGE = page("architecture.md")


def test_every_folder_with_code_is_in_the_table():
    """Those that git tracks; a folder that somebody has just begun need not be."""
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE))
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {room(path) for path in set(tracked.split()) & set(modules())} - {""} <= listed
    assert listed <= {room(path) for path in modules()}


def room(path: str) -> str:
    parts = path.split("/")[:-1]
    return "/".join(parts[:2] if parts[:1] == ["core"] else parts[:1])


def test_every_class_it_names_exists():
    homes = (attention, engine, errors, scheduler, headstock, builtins)
    elsewhere = {"Selector", "OutputProcessor"}
    for name in set(re.findall(r"`([A-Z]\w+[a-z]\w*)[`.(]", PAGE)) - elsewhere:
        assert any(hasattr(home, name) for home in homes), name
