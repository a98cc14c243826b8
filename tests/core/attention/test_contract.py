"""Of the contract: what a backend must write, how options are checked, and requirements as values."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.core.attention import AttentionBackend, Capabilities, Requirement, Workspace
from headstock.core.errors import InvalidInput
from support.attention import CPU


def test_a_backend_of_capabilities_and_forward_is_complete() -> None:
    assert AttentionBackend.__abstractmethods__ == {"capabilities", "forward"}


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    splits: int = 1

    def __post_init__(self) -> None:
        if self.splits < 1:
            raise InvalidInput("splits", f"must be at least 1, not {self.splits}")


class Configured(ReferenceBackend):
    Options = SplitOptions


def test_options_are_read_from_a_mapping_and_checked() -> None:
    assert Configured.parse_options({"splits": 4}) == SplitOptions(splits=4)
    with pytest.raises(InvalidInput, match=r"'split'.*known are splits"):
        Configured.parse_options({"split": 4})
    with pytest.raises(InvalidInput, match="at least 1"):
        Configured.parse_options({"splits": 0})
    with pytest.raises(InvalidInput, match="takes none"):
        ReferenceBackend.parse_options({"splits": 4})


def test_missing_packages_are_reasons_not_exceptions() -> None:
    needy = ReferenceBackend.derive(
        "Needy", requires=(Requirement(package="no-such-kernels"), Requirement(package="torch", versions="<1"))
    )
    reasons = needy.availability().reasons
    assert reasons[0] == "package no-such-kernels is not installed"
    assert reasons[1].startswith("package torch is ")
    assert reasons[1].endswith("needed is <1")
    assert not needy.availability().available
    assert ReferenceBackend.availability().available


def test_capabilities_are_a_function_of_the_device_alone() -> None:
    assert isinstance(ReferenceBackend.capabilities(CPU), Capabilities)
    assert ReferenceBackend.capabilities(CPU) == ReferenceBackend.capabilities(CPU)


def test_the_workspace_grows_and_is_reused() -> None:
    workspace = Workspace("cpu")
    first = workspace.get(100)
    assert first.numel() == 100
    assert workspace.get(40).data_ptr() == first.data_ptr()
    assert workspace.get(200).numel() == workspace.nbytes == 200
