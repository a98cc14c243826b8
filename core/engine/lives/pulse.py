"""Whether an engine process lives: `Vigil` says what is too long, `Pulse` judges by heartbeats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vigil:
    """What counts as dead, in seconds."""

    beat: float = 0.5
    """Between heartbeats; a thread of the engine's sends them, whatever its loop is at."""
    silence: float = 3.0
    """Without a heartbeat, after which the process is dead if the system says that it is stopped."""
    step: float = 60.0
    """That a step may take, whatever was measured."""
    step_factor: float = 5.0
    """Times the longest step so far is what a step may take, if that is more."""
    start: float = 900.0
    """Until the engine has loaded its model."""
    close: float = 5.0
    """That an engine is given to end by itself."""

    def step_limit(self, longest: float) -> float:
        """What a step may take where the longest so far took `longest`."""
        return max(self.step, self.step_factor * longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat."""

    longest_step: float = 0.0
    """Seconds of the longest step so far."""


class Pulse:
    """Counts its own ticks, one each `Vigil.beat`, and not the clock: where all stand still, nobody is late."""

    def __init__(self, vigil: Vigil) -> None:
        self._vigil = vigil
        self._last = Beat()
        self._missed = 0

    def beat(self, beat: Beat | None = None) -> None:
        """A heartbeat has come, or anything else."""
        self._last = beat or self._last
        self._missed = 0

    @property
    def suspicious(self) -> bool:
        """Whether it is time to look whether the process is stopped."""
        return self._missed * self._vigil.beat >= self._vigil.silence

    def tick(self) -> None:
        """Another `Vigil.beat` seconds went by."""
        self._missed += 1

    def verdict(self, *, stopped: bool, started: bool) -> str | None:
        """Why the process counts as dead; None while it does not.

        One that is not stopped may be inside native code that lets no other thread run: it has a step's time, or while
        it starts, all the time for that.
        """
        silent = self._missed * self._vigil.beat
        if stopped and self.suspicious:
            return f"its process is stopped and has not answered for {silent:.1f} s"
        limit = self._vigil.step_limit(self._last.longest_step) if started else self._vigil.start
        if silent > limit:
            return f"its process has not answered for {silent:.0f} s (limit {limit:.0f} s)"
        return None
