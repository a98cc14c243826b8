"""What is published: the sdist holds the tree, the wheel the package, and its metadata fits every platform."""

from __future__ import annotations

import configparser
import email
import tarfile
import zipfile
from email.message import Message

import pytest
from packaging.requirements import Requirement

from support.tree import OUTSIDE_THE_PACKAGE, ROOT, files, modules

DATA = (
    "py.typed",
    *(p for p in files() if "/" in p and not p.endswith(".py") and p.split("/")[0] not in OUTSIDE_THE_PACKAGE),
)
"""Files of the package that are not Python, such as the sources of kernels."""

PLATFORMS = {
    "linux x86-64": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "linux arm": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    "macos arm": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "macos intel": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "x86_64"},
}


@pytest.fixture(scope="session")
def contents(distributions) -> dict[str, bytes]:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="session")
def metadata(contents) -> Message:
    (name,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(contents[name])


def requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def wanted(metadata: Message, platform: dict[str, str], extra: str = "") -> set[str]:
    """Names that an install on `platform` requires."""
    environment = platform | {"extra": extra, "python_version": "3.11", "python_full_version": "3.11.9"}
    return {r.name for r in requirements(metadata) if r.marker is None or r.marker.evaluate(environment)}


def test_the_sdist_holds_the_tree(distributions):
    with tarfile.open(distributions.sdist) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    written_by_the_build = {"PKG-INFO", "setup.cfg"} | {
        name for name in names if name.startswith("headstock.egg-info/")
    }
    assert names - written_by_the_build == set(files())


def test_the_wheel_holds_the_files_of_the_package_and_no_others(contents):
    packaged = {name.removeprefix("headstock/") for name in contents if ".dist-info/" not in name}
    assert packaged == set(modules()) | set(DATA)
    assert all(name.startswith("headstock/") for name in contents if ".dist-info/" not in name)


def test_the_wheel_holds_what_the_tree_holds(contents):
    """Byte for byte, so that nothing stale from a build folder rides along."""
    for path in (*modules(), *DATA):
        assert contents[f"headstock/{path}"] == (ROOT / path).read_bytes(), path


def test_tests_and_docs_stay_out_of_the_wheel(contents):
    assert not [name for name in contents if name.split("/")[1] in OUTSIDE_THE_PACKAGE or "/test_" in name]


def test_the_wheel_is_pure_python(distributions, contents):
    assert distributions.wheel.name.endswith("-py3-none-any.whl")
    (record,) = (text for name, text in contents.items() if name.endswith(".dist-info/WHEEL"))
    assert b"Root-Is-Purelib: true" in record


def test_the_version_is_the_one_of_the_source(metadata):
    namespace: dict[str, str] = {}
    exec((ROOT / "core/version.py").read_text(), namespace)
    assert metadata["Version"] == namespace["__version__"]


def test_the_licence_is_named_and_shipped(metadata, contents):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    shipped = {name.rpartition("/")[2]: text for name, text in contents.items() if "/licenses/" in name}
    assert shipped == {name: (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_entry_points_name_the_command_and_the_built_in_backends(contents):
    (text,) = (text.decode() for name, text in contents.items() if name.endswith(".dist-info/entry_points.txt"))
    groups = configparser.ConfigParser(delimiters="=")
    groups.read_string(text)
    assert dict(groups["console_scripts"]) == {"headstock": "headstock.entrypoints.cli:main"}
    assert {"reference", "sdpa", "cpu"} <= set(groups["headstock.backends"])
    for target in (value for group in groups.values() for value in group.values()):
        module, _, name = target.partition(":")
        path = module.replace(".", "/")
        (source,) = (contents[file].decode() for file in (f"{path}.py", f"{path}/__init__.py") if file in contents)
        assert name in source, target


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_an_install_asks_the_same_of_every_platform(metadata, platform):
    plain = {r.name for r in requirements(metadata) if r.marker is None}
    assert wanted(metadata, platform) == plain
    assert "torch" in plain


@pytest.mark.parametrize("extra", ["", "dev"])
@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_no_platform_is_asked_for_triton_or_a_gpu_library(metadata, platform, extra):
    """A torch build brings the triton that fits it: CUDA's on Linux only, ROCm's under another name, others none."""
    gpu = ("triton", "pytorch-triton", "nvidia", "cuda", "cupy", "rocm", "flash", "xformers", "amd")
    assert not [name for name in wanted(metadata, platform, extra) if name.startswith(gpu)]


KERNELS = ("amd-aiter", "flash-attn", "flash-attn-4", "flashinfer-python")


def test_bounds_are_loose(metadata):
    """Lower bounds only: a pin or a cap would move what a user has. Kernel libraries are the exception: adapters are
    written against releases, and refuse others."""
    loose = [r for r in requirements(metadata) if r.name not in KERNELS]
    assert not [str(r) for r in loose if any(s.operator != ">=" for s in r.specifier) or r.url]
    assert metadata["Requires-Python"] == ">=3.11"
