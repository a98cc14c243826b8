"""What a running engine lets one see and keep: recordings of its attention."""

from .reading import RecordedStep, RecordedTensors, Recording, read_recording
from .tape import Tape, TapedGroup, current_tape, taping

__all__ = [
    "RecordedStep",
    "RecordedTensors",
    "Recording",
    "Tape",
    "TapedGroup",
    "current_tape",
    "read_recording",
    "taping",
]
