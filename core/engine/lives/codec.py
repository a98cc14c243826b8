"""Commands and events as frames: a byte for the kind, a msgpack part, and token ids as a frame of their own.

Nothing is pickled: a frame can only become one of the values named here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol, cast

import msgspec

from ... import errors
from ...errors import EngineDeadError, HeadstockError, InvalidInput
from ...params import SamplingParams
from ...scheduler.output import EngineCoreOutput, EngineRequest
from ...scheduler.stats import SchedulerStats
from ..info import EngineInfo
from .messages import Abort, Add, Call, Command, Died, Event, News, Reply
from .pulse import Beat

PROTOCOL = 1
"""Changes with the form of the frames."""


class Frame(Protocol):
    """Anything with a buffer."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Frames = Sequence[Frame]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing an engine process says. Its form never changes."""

    protocol: int
    version: str
    """Of headstock, as the process has imported it."""
    path: str
    """Where from."""
    pid: int
    """Its process id."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is to run."""

    version: str
    """Of headstock, in the process that asks."""
    composer: str
    """``module:function``, called with `payload`; gives the `EngineCore`."""
    payload: bytes


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The engine runs."""

    info: EngineInfo
    digest: str
    """SHA-256 of the set-up that it runs, as hexadecimal digits."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error of ours, or of others with its text, on its way to another process."""

    kind: str
    """Name of the class in `core/errors.py`; of others, of the class itself."""
    args: tuple[str, ...]
    traceback: str = ""


class _Reply(msgspec.Struct, array_like=True):
    number: int
    kind: str
    value: msgspec.Raw
    error: Refusal | None


_encoder = msgspec.msgpack.Encoder()
_news = msgspec.msgpack.Decoder(list[EngineCoreOutput])
_values: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "SchedulerStats": msgspec.msgpack.Decoder(SchedulerStats),
    "bool": msgspec.msgpack.Decoder(bool),
    "NoneType": msgspec.msgpack.Decoder(None),
}
"""What calls answer."""
_said: dict[bytes, msgspec.msgpack.Decoder[Any]] = {
    b"H": msgspec.msgpack.Decoder(Hello),
    b"S": msgspec.msgpack.Decoder(Setup),
    b"Y": msgspec.msgpack.Decoder(Ready),
    b"F": msgspec.msgpack.Decoder(Refusal),
    b"B": msgspec.msgpack.Decoder(Beat),
    b"D": msgspec.msgpack.Decoder(Died),
}
_KINDS = {Hello: b"H", Setup: b"S", Ready: b"Y", Refusal: b"F", Beat: b"B", Died: b"D"}

Word = Hello | Setup | Ready | Refusal | Beat | Died


def encode_word(word: Word) -> list[bytes]:
    """Frames of what is said about the engine as a whole."""
    return [_KINDS[type(word)], _encoder.encode(word)]


def encode_command(command: Command | None) -> list[Any]:
    """Frames of a command; None is the last one, after which the engine ends."""
    match command:
        case Add(request=request, number=number):
            return [b"A", _encoder.encode((number, _without_tokens(request))), array("i", request.prompt_token_ids)]
        case Abort(request_ids=ids):
            return [b"X", _encoder.encode(ids)]
        case Call(number=number, method=method, args=args):
            return [b"C", _encoder.encode((number, method, args))]
        case None:
            return [b"Q"]


def decode_command(frames: Frames) -> Command | None:
    """The reverse of `encode_command`; `ValueError` for anything else."""
    match bytes(frames[0]):
        case b"A":
            number, plain = msgspec.msgpack.decode(frames[1])
            return Add(request=_request(plain, frames[2]), number=number)
        case b"X":
            return Abort(request_ids=msgspec.msgpack.decode(frames[1], type=tuple[str, ...]))
        case b"C":
            number, method, args = msgspec.msgpack.decode(frames[1])
            return Call(number=number, method=method, args=tuple(args))
        case b"Q":
            return None
        case kind:
            raise ValueError(f"{kind!r} is no command")


def encode_event(event: Event) -> list[bytes]:
    """Frames of an event."""
    match event:
        case News(outputs=outputs):
            return [b"N", _encoder.encode(outputs)]
        case Reply(number=number, value=value, error=error):
            refusal = None if error is None else refusal_of(error)
            raw = msgspec.Raw(_encoder.encode(value))
            return [b"R", _encoder.encode(_Reply(number, type(value).__name__, raw, refusal))]
        case Died():
            return encode_word(event)


def decode_event(frames: Frames) -> Event | Word:
    """What an engine process says; `ValueError` for anything else."""
    kind = bytes(frames[0])
    if kind == b"N":
        return News(outputs=_news.decode(frames[1]))
    if kind == b"R":
        reply = msgspec.msgpack.decode(frames[1], type=_Reply)
        error = None if reply.error is None else error_of(reply.error)
        return Reply(number=reply.number, value=_values[reply.kind].decode(reply.value), error=error)
    if kind in _said:
        return _said[kind].decode(frames[1])
    raise ValueError(f"{kind!r} is no event")


def refusal_of(error: BaseException, traceback: str = "") -> Refusal:
    """An error as a value."""
    if isinstance(error, InvalidInput):
        return Refusal(kind="InvalidInput", args=(error.field, error.problem), traceback=traceback)
    return Refusal(kind=type(error).__name__, args=(str(error),), traceback=traceback)


def error_of(refusal: Refusal) -> HeadstockError:
    """The error again: of its own class where that is ours; else a `HeadstockError` that names the class."""
    cls = getattr(errors, refusal.kind, None)
    if isinstance(cls, type) and issubclass(cls, HeadstockError):
        return cast("HeadstockError", cls(*refusal.args))
    text = f"{refusal.kind}: {refusal.args[0]}"
    return EngineDeadError(text, details=refusal.traceback) if refusal.traceback else HeadstockError(text)


def _without_tokens(request: EngineRequest) -> dict[str, Any]:
    """The request's fields but the prompt, parameters as a mapping of what is set."""
    plain = {f.name: getattr(request, f.name) for f in fields(request) if f.name != "prompt_token_ids"}
    params = request.params
    plain["params"] = {f.name: value for f in fields(params) if (value := getattr(params, f.name)) != f.default}
    return plain


def _request(plain: dict[str, Any], tokens: Frame) -> EngineRequest:
    ids = tuple(memoryview(tokens).cast("i"))
    plain["params"] = SamplingParams(**plain["params"])
    plain["eos_token_ids"] = tuple(plain["eos_token_ids"])
    return EngineRequest(prompt_token_ids=ids, **plain)
