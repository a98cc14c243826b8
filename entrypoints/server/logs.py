"""The server's log: text or a JSON object a line, on stderr. No prompts, answers or keys are in it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]
FIELDS = "headstock_fields"
"""Attribute of records that holds further values, by name."""


class JsonFormatter(logging.Formatter):
    """One object a line; whatever was said cannot break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """`time LEVEL message name=value…`, control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {name}={value}" for name, value in getattr(record, FIELDS, {}).items())
        line = f"{time} {record.levelname} {record.getMessage()}{fields}"
        safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        return f"{safe}\n{self.formatException(record.exc_info)}" if record.exc_info else safe


def set_up_logging(kind: LogFormat, *, verbose: bool) -> None:
    """Send everything to stderr. `verbose` shows what the engine says of itself, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headstock").setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("headstock.entrypoints.server").setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def log_with(logger: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """A line with values beside it."""
    logger.log(level, message, extra={FIELDS: fields})
