"""What holds for every page of the documentation."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from support.pages import page
from support.tree import ROOT

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]*))?\)", page(name)):
        if target.startswith("https://"):
            continue
        path = ROOT / "docs" / (target or name)
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, anchor


@pytest.mark.parametrize("name", PAGES)
def test_every_table_is_whole(name):
    """As many columns in the line below the head as in the head and in each row."""
    columns = 0
    for above, line in pairwise(["", *page(name).splitlines()]):
        cells = len(re.sub(r"`[^`]*`", "", line).split("|"))
        if line.startswith("|") and not above.startswith("|"):
            columns = cells
        if line.startswith("|"):
            assert cells == columns, line


@pytest.mark.parametrize("name", PAGES)
def test_lines_are_not_too_long(name):
    prose = [line for line in page(name).splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 130


@pytest.mark.parametrize("name", PAGES)
def test_every_path_of_the_package_that_is_named_exists(name):
    for path in re.findall(r"`((?:core|plugins|backends|selector|entrypoints|tests|docs)/[\w/.]*)`", page(name)):
        assert (ROOT / path).exists(), path
