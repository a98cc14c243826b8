"""`Report`: how a backend fared, as a value, as JSON and as JUnit XML."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from ...core.version import __version__
from .case import MIXED, Outcome, Status
from .conventions import CONVENTIONS
from .oracle import STATEMENT

SCHEMA = 1
"""Version of the JSON document. Fields may be added without a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Cases of one convention."""

    passed: int = 0
    skipped: int = 0
    failed: int = 0

    @property
    def verdict(self) -> Status:
        """Failed where one case is; skipped where none could be run."""
        return "failed" if self.failed else "passed" if self.passed else "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All outcomes of one run."""

    backend: str
    package: str
    """Distribution and version."""
    source_hash: str
    """Of the backend's source files: it changes where the version does not."""
    device: str
    when: str
    """UTC, ISO 8601."""
    command: str
    """``headstock check`` with everything that repeating a case needs, but for ``--case``."""
    level: str
    seed: int
    """Of the made-up cases."""
    outcomes: tuple[Outcome, ...]
    unrun: int = 0
    """Cases that were given up, after too many that ended the process."""

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.status == "failed")

    @property
    def conforms(self) -> bool:
        """Nothing failed, and something was tried."""
        return not self.failures and not self.unrun and any(o.status == "passed" for o in self.outcomes)

    @property
    def seconds(self) -> float:
        return sum(o.seconds for o in self.outcomes)

    def counts(self) -> dict[str, Count]:
        """By convention, in their order; those without a case are left out."""
        found: dict[str, Counter[str]] = {name: Counter() for name in CONVENTIONS}
        for outcome in self.outcomes:
            found[outcome.convention][outcome.status] += 1
        return {name: Count(**counter) for name, counter in found.items() if counter}

    def skips(self, convention: str) -> tuple[str, ...]:
        """What the backend declares, or this machine lacks, for which cases of a convention were skipped."""
        reasons = (o.reason for o in self.outcomes if o.convention == convention and o.status == "skipped")
        return tuple(dict.fromkeys(reasons))

    def repeat(self, outcome: Outcome) -> str:
        """The command that repeats a case; of a made-up one, as small as it could be made."""
        made_up = outcome.case.startswith(f"{MIXED}:") and outcome.problem
        return f"{self.command} --case {shlex.quote(f'{MIXED}:{outcome.problem}' if made_up else outcome.case)}"

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``; the form is described in docs/conformance.md."""
        return {
            "schema": SCHEMA,
            "when": self.when,
            "headstock": __version__,
            "backend": self.backend,
            "package": self.package,
            "source_hash": self.source_hash,
            "device": self.device,
            "level": self.level,
            "seed": self.seed,
            "conforms": self.conforms,
            "seconds": round(self.seconds, 3),
            "tolerance": STATEMENT,
            "unrun": self.unrun,
            "conventions": [
                {"name": name, "statement": CONVENTIONS[name], "verdict": count.verdict, **asdict(count)}
                for name, count in self.counts().items()
            ],
            "cases": [asdict(o) | {"seconds": round(o.seconds, 4)} for o in self.outcomes],
            "failures": [asdict(o) | {"command": self.repeat(o)} for o in self.failures],
        }

    def to_junit(self) -> str:
        """JUnit XML: a suite a convention, a case a case."""
        root = ElementTree.Element("testsuites", name=f"headstock check {self.backend}")
        for name, count in self.counts().items():
            cases = [o for o in self.outcomes if o.convention == name]
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=name,
                tests=str(len(cases)),
                failures=str(count.failed),
                errors="0",
                skipped=str(count.skipped),
                time=f"{sum(o.seconds for o in cases):.3f}",
            )
            for outcome in cases:
                self._junit_case(suite, outcome)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def _junit_case(self, suite: ElementTree.Element, outcome: Outcome) -> None:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"headstock.{self.backend}.{outcome.convention}",
            name=outcome.case,
            time=f"{outcome.seconds:.3f}",
        )
        if outcome.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=_printable(outcome.reason))
        elif outcome.status == "failed":
            text = f"{outcome.reason}\nproblem: {outcome.problem}\nrepeat with: {self.repeat(outcome)}"
            failure = ElementTree.SubElement(case, "failure", message=_printable(outcome.reason))
            failure.text = _printable(text)


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold: messages are other people's."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
