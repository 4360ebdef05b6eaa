"""Lines of access logs."""

from __future__ import annotations

import json

__all__ = ["json_line", "nginx_line"]


def json_line(**fields: object) -> bytes:
    """A line of a JSON log: one request at the epoch that took a second."""
    return (
        json.dumps({"time": 0, "status": 200, "seconds": 1, "bytes": 10} | fields).encode() + b"\n"
    )


def nginx_line(more: str = "") -> bytes:
    """A line in the combined format."""
    head = '127.0.0.1 - acme [01/Nov/2026:08:00:00 +0800] "POST /v1/chat/completions HTTP/1.1"'
    return f'{head} 200 512 "-" "curl/8 \\"x\\""{more}\n'.encode()
