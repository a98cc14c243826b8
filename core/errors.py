"""The errors Headstock raises on purpose. Each message says what was asked, what was found and what to do."""

from __future__ import annotations


class HeadstockError(Exception):
    """Base of all errors raised on purpose; the CLI prints its text and no traceback."""


class InvalidInput(HeadstockError, ValueError):
    """A value from the user is wrong; nothing has been started or lost.

    `field` names the parameter, as the user wrote it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def check_unicode(field: str, text: str) -> None:
    """Raise `InvalidInput` for text with lone surrogates, which no encoding can represent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = f"U+{ord(text[error.start]):04X}"
        problem = f"character {error.start} is the lone surrogate {character}, not valid Unicode"
        raise InvalidInput(field, problem) from None


class ModelError(HeadstockError):
    """A model cannot be found, read, verified or served; raised before weights load where possible."""


class BackendError(HeadstockError):
    """An attention backend is unknown, ambiguous, unavailable or does not fit; the text lists all reasons."""


class CapacityError(HeadstockError):
    """The KV cache cannot hold what was asked of it; the text states the capacity."""


class EngineDeadError(HeadstockError):
    """The engine has died or was closed: whatever waits for it ends with this, and so does every later call."""

    def __init__(self, reason: str, *, details: str = "", restarting: bool = False) -> None:
        """`details` is the traceback of where it died, or what it wrote last; it is part of the text.

        `restarting` says that it is being started again: later calls will find it alive.
        """
        super().__init__(f"{reason}\n{details.rstrip()}" if details else reason)
        self.reason = reason
        self.details = details
        self.restarting = restarting

    def fresh(self) -> EngineDeadError:
        """The same, to be raised: raising adds to a traceback."""
        return EngineDeadError(self.reason, details=self.details, restarting=self.restarting)


class EngineClosedError(EngineDeadError):
    """Its owner has ended the engine, so it is nothing that starting it again would mend."""

    def __init__(self) -> None:
        super().__init__("the engine has been closed")

    def fresh(self) -> EngineClosedError:
        return EngineClosedError()
