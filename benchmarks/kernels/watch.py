"""A contender in its rounds: what it raises is its own end, and outputs are checked when it cannot know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from random import Random

from torch import Tensor

from ...plugins import Failure, Guard
from .check import expected, suspects
from .contenders import KernelContender
from .data import Pool
from .draws import draws
from .shapes import Shape

PICKED = 3
"""Query tokens, picked at random, that a later check looks at, beside those in which contenders differ most."""


class Checks:
    """When outputs of a row are checked after the first call: after a round picked at random, and after the last."""

    def __init__(self, shape: Shape, pool: Pool, dtype: str, random: Random, rounds: int) -> None:
        self._shape, self._pool, self._dtype, self._random = shape, pool, dtype, random
        self.between = random.randrange(rounds)
        """The round."""
        sequence = draws(shape, random.getrandbits(32))
        self.draws = (next(sequence), next(sequence))
        """What the inputs are then, the same for all contenders."""

    def verdicts(self, watched: Mapping[str, Watched]) -> dict[str, tuple[str, float]]:
        """By contender what speaks against it, empty for nothing, and the largest error found."""
        for contender in watched.values():
            contender.look(1)
        found = {name: (contender.problem, 0.0) for name, contender in watched.items()}
        for number, draw in enumerate(self.draws):
            outs = {name: c.outs[number] for name, c in watched.items() if not c.problem and number in c.outs}
            if not outs:
                continue
            tokens = set(self._random.sample(range(self._shape.tokens), min(PICKED, self._shape.tokens)))
            exact = expected(self._shape, self._pool, self._dtype, draw, tokens | suspects(list(outs.values())))
            for name, out in outs.items():
                error = exact.error(out)
                problem = exact.problem(error)
                earlier, most = found[name]
                found[name] = (earlier or (f"{problem}, in a later call" if problem else ""), max(most, error))
        return found


class Watched:
    """For `interleave`."""

    def __init__(self, contender: KernelContender, guard: Guard, checks: Checks) -> None:
        self.problem = ""
        """Why its times do not count; it is not called any more."""
        self.outs: dict[int, Tensor] = {}
        """Outputs by the number of the check."""
        self._contender = contender
        self._guard = guard
        self._checks = checks
        self._round = 0

    def turn(self, calls: int, warm: bool) -> Sequence[float]:
        """Not numbers from its failure on."""
        result = [nan] if self.problem else self._guard.attempt(lambda: self._contender.turn(calls, warm))
        if isinstance(result, Failure):
            self.problem = f"failed: {result}"
            return [nan]
        if self._contender.problem:
            self.problem = f"wrong: {self._contender.problem}, in a later call"
        if self._round == self._checks.between:
            self.look(0)
        self._round += 1
        return result

    def look(self, number: int) -> None:
        """Keep the output of a call on the inputs of a check."""
        if self.problem:
            return
        out = self._guard.attempt(lambda: self._contender.check(self._checks.draws[number]).clone())
        if isinstance(out, Failure):
            self.problem = f"failed: {out}"
        else:
            self.outs[number] = out
