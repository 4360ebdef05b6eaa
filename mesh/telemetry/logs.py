"""Logs: quiet by default, text for people, JSON on request."""

from __future__ import annotations

import json
import logging
import sys

__all__ = ["setup_logs"]

# Libraries that would speak of their own affairs; an operator who wants them says debug.
_CHATTY = ("grpc", "asyncio", "httpx", "opentelemetry", "redis")
# These write down what passes through them: headers with keys, URLs with tickets, prompts. At no
# level may that be in a log (CASES 108).
_INDISCREET = ("uvicorn", "websockets", "sqlalchemy")


class _JsonFormatter(logging.Formatter):
    """One object per line: time (Unix seconds), level, logger, message, and the error if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "service": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # A lone surrogate in a message must not break the log (CASES 20): ASCII escapes carry it.
        return json.dumps(entry)


def setup_logs(level: str, *, as_json: bool) -> None:
    """Send all logs to stderr at `level` (debug, info, warning, error)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "ERROR")
    for name in _INDISCREET:
        logging.getLogger(name).setLevel("ERROR")
