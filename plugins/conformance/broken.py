"""`Broken`: how a judge says that a backend does not keep a convention."""

from __future__ import annotations


class Broken(Exception):
    """A convention is not kept. Caught by the kit, case by case.

    `convention` is the one that is broken, where it is another than the case is about; `problem` says what was seen;
    `stray` tells that NaN or inf stands where a number should.
    """

    def __init__(self, problem: str, convention: str = "", *, stray: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.convention = convention
        self.stray = stray


class Skipped(Exception):
    """A case turns out not to apply: by what the backend declares, or for want of something on this machine."""
