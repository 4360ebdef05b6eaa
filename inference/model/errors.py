"""Why a model cannot be loaded, in words for the person who named it."""

from __future__ import annotations

__all__ = ["ModelLoadError"]


class ModelLoadError(Exception):
    """One line: what is wrong with the model's files, and what to do about it."""
