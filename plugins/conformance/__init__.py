"""The conformance kit: cases for every convention of the contract, run against any backend, and a report."""

from .broken import Broken
from .case import Case, Outcome, run
from .check import GENERATED, cases_for, check, select
from .conventions import CONVENTIONS
from .problem import Problem, parse_problem
from .report import Count, Report
from .subject import Subject

__all__ = [
    "CONVENTIONS",
    "GENERATED",
    "Broken",
    "Case",
    "Count",
    "Outcome",
    "Problem",
    "Report",
    "Subject",
    "cases_for",
    "check",
    "parse_problem",
    "run",
    "select",
]
