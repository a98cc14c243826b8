"""A package as somebody else would publish it, installed with pip."""

from __future__ import annotations

import pytest
import torch

from headstock.core.attention import AttentionSpec
from headstock.core.attention.reference import attend_sequence
from headstock.core.errors import BackendError
from headstock.plugins import load_plugins
from headstock.selector import Selector, find_device, list_backends, read_policy
from support import automatic
from support.attention import Scene, make
from support.plugins import SAMPLE, forget_modules, install_sample

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, dtype="float32", block_size=4)
DEVICE = find_device("cpu")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which the package is installed."""
    return install_sample(tmp_path_factory.mktemp("sample") / "site")


@pytest.fixture
def path(installed, monkeypatch):
    """That folder, on the path."""
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    forget_modules(installed)


def selector(backend="auto", **environ):
    return Selector(load_plugins(environ=environ), read_policy(attention_backend=backend, environ=environ))


def test_pip_leaves_what_the_registry_reads(installed):
    assert (installed / "headstock_sample-1.2.3.dist-info" / "entry_points.txt").is_file()


@pytest.mark.usefixtures("path")
def test_it_is_chosen_by_name_and_computes_attention():
    choice = selector("Sample").select({"layer": SPEC}, DEVICE).choices["layer"]
    assert (choice.backend, choice.distribution, choice.origin) == ("sample", "headstock-sample 1.2.3", "flag (Sample)")
    assert choice.cls.__module__ == "headstock_sample.backend"
    scene = Scene(spec=SPEC, seq_lens=(5, 33))
    queries = [torch.randn(n, 4, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 1)]
    out = scene.attend(make(choice.cls, SPEC), queries)
    parts = zip(queries, scene.keys, scene.values, strict=True)
    want = torch.cat([attend_sequence(query, key, value, SPEC)[0] for query, key, value in parts])
    assert float((out - want).abs().max()) < 1e-6


@pytest.mark.usefixtures("path")
def test_it_ranks_itself_first_and_is_chosen_without_being_asked_for():
    choice = selector().select({"layer": SPEC}, DEVICE).choices["layer"]
    assert choice.backend == "sample"
    assert choice.origin.startswith("ranked (")


@pytest.mark.usefixtures("path")
def test_it_is_listed_with_version_package_and_verdict():
    rows = list_backends(selector(), DEVICE)
    sample = next(row for row in rows.backends if row.name == "sample")
    assert (sample.version, sample.distribution, sample.verdict, sample.rank) == (
        "1.2.3",
        "headstock-sample",
        "available",
        1,
    )
    assert [(row.distribution, row.verdict) for row in rows.plugins] == [("headstock-sample", "loaded")]


@pytest.mark.usefixtures("path")
def test_kept_out_it_is_refused_by_name_with_the_reason():
    with pytest.raises(BackendError, match="plugins are switched off \\(HEADSTOCK_DISABLE_PLUGINS"):
        selector("sample", HEADSTOCK_DISABLE_PLUGINS="1").select({"layer": SPEC}, DEVICE)
    assert (
        selector(HEADSTOCK_DISABLE_PLUGINS="1").select({"layer": SPEC}, DEVICE).choices["layer"].backend
        == automatic.BACKEND
    )


def test_uninstalled_it_is_unknown():
    with pytest.raises(BackendError, match='"sample" is not known: no installed package offers it'):
        selector("sample").select({"layer": SPEC}, DEVICE)


def test_the_smallest_backend_is_about_ten_lines():
    lines = (SAMPLE / "headstock_sample" / "backend.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(('"""', "#", "from "))]
    assert len(code) <= 12
