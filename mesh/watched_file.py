"""A file of settings that is read again when it changes, and kept as it was when the new one is bad.

Charter: the one way in which a running service follows a file that an operator edits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from mesh.document import DocumentError

__all__ = ["WatchedFile"]

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What `read` makes of the file's bytes and its name, as `value`.

    No more than `bytes_max` and one byte are read; `what` names the file in the log. Raises `DocumentError` when the first reading fails.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bytes, str], T],
        bytes_max: int,
        log: logging.Logger,
        what: str,
    ) -> None:
        self._path = path
        self._read = read
        self._bytes_max = bytes_max
        self._log = log
        self._what = what
        self._stamp = self._stat()
        self.value = self._load()

    def refresh(self) -> bool:
        """Look whether it changed; whether `value` is new. A bad file is told once, in the log."""
        stamp = self._stat()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.value = self._load()
        except DocumentError as error:
            self._log.warning("the %s stays as it was: %s", self._what, error)
            return False
        self._log.info("the %s was read again", self._what)
        return True

    def _load(self) -> T:
        try:
            with self._path.open("rb") as file:
                # One byte more than allowed: what is too long is for `read` to refuse.
                text = file.read(self._bytes_max + 1)
        except OSError as error:
            wrong = f"{self._path.name}: cannot be read ({error.strerror})"
            raise DocumentError(f"{wrong}; check the path and its rights") from None
        return self._read(text, self._path.name)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
