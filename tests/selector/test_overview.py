"""The page on selection has today's table."""

from __future__ import annotations

import pytest

from headstock.selector import overview, ranking
from headstock.selector.overview import BEGIN, END, MODELS, main, written
from headstock.selector.profiles import PROFILES
from support.pages import page
from support.tree import ROOT


@pytest.fixture
def _ranked_as_it_is(monkeypatch):
    """The order of the package, which the other tests of this folder put aside, and kernels that are compiled."""
    import importlib.util

    spec = importlib.util.find_spec(ranking.__name__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for name, table in fresh.RANKING.items():
        monkeypatch.setitem(ranking.RANKING, name, table)


@pytest.mark.usefixtures("_ranked_as_it_is")
def test_the_page_has_the_table_of_today():
    text = page("selection.md")
    assert text == written(text), "write it anew: python -m headstock.selector.overview docs/selection.md"


@pytest.mark.usefixtures("_ranked_as_it_is")
def test_every_profile_and_model_is_in_it():
    table = overview.overview()
    assert all(profile.name in table.splitlines()[0] for profile in PROFILES)
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]] == list(MODELS)


def test_the_kinds_of_model_that_matter_are_there():
    layers = [spec for specs in MODELS.values() for spec in specs]
    assert len(MODELS) >= 12
    for what in ("window", "softcap", "sinks", "alibi", "latent", "masks"):
        assert any(getattr(spec, what) for spec in layers), what
    assert {64, 96, 128, 256} <= {spec.head_size for spec in layers}


def test_a_page_without_marks_is_refused(tmp_path, capsys):
    path = tmp_path / "page.md"
    assert main([str(path)]) == 2
    path.write_text("# Nothing")
    assert main([str(path)]) == 2
    assert "has no place for the table" in capsys.readouterr().err
    path.write_text(f"{BEGIN}{END}")
    assert main([str(path)]) == 0
    assert path.read_text().count("\n| ") >= len(MODELS)


def test_it_is_said_that_nothing_was_measured():
    assert "nothing on this page was run" in page("selection.md")
    assert (ROOT / "docs/selection.md").is_file()
