"""Which check catches which mutant; run as a program, it writes the table of docs/conformance.md anew.

PYTHONPATH=tests python -m conformance.mutants.catching
"""

from __future__ import annotations

from headstock.core.attention import AttentionBackend, Device
from headstock.plugins.conformance import CONVENTIONS, Outcome, Subject, cases_for, check
from support.tree import ROOT

from . import logits, masks, memory, paths, plans  # noqa: F401 - they register themselves
from .base import MUTANTS, Plain

CPU = Device(platform="cpu", name="test CPU", arch="x86_64")
PAGE = ROOT / "docs" / "conformance.md"
START, END = "<!-- mutants: written by tests/conformance/mutants/catching.py -->", "<!-- end of mutants -->"
HEAD = "| mutant | what it does wrong | caught by | in case |\n|---|---|---|---|\n"


def first_failure(name: str, cls: type[AttentionBackend]) -> Outcome | None:
    """The failure at which a run at level quick stops, or None."""
    subject = Subject(name=name, cls=cls, device=CPU)
    *_, last = check(subject, cases_for(subject), stop_at_first=True)
    return last if last.status == "failed" else None


def row(cls: type[Plain], failure: Outcome) -> str:
    """A line of the table. A made-up case's name is long, and says little."""
    case = "mixed, made up" if failure.case.startswith("mixed:") else f"`{failure.case}`"
    return f"| {cls.__name__} | {' '.join(cls.mistake.split())} | {failure.convention} | {case} |"


def in_order() -> dict[str, type[Plain]]:
    """All mutants, by convention."""
    order = list(CONVENTIONS)
    return dict(sorted(MUTANTS.items(), key=lambda item: order.index(item[1].conventions[0])))


def main() -> None:
    rows: list[str] = []
    for name, cls in in_order().items():
        failure = first_failure(name, cls)
        if failure is None:
            raise SystemExit(f"{name} is not caught")
        rows.append(row(cls, failure))
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{HEAD}" + "\n".join(rows) + f"\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
