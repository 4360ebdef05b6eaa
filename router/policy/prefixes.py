"""Which instances are known to have a prompt's beginning in their prefix cache (the design, §5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

__all__ = ["PrefixDirectory"]


class PrefixDirectory:
    """From the marks of `mesh.prefixes` to the instances that have reported them."""

    def __init__(self) -> None:
        self._marks_of: dict[str, frozenset[int]] = {}
        self._holders: dict[int, set[str]] = {}

    def report(self, instance: str, marks: frozenset[int]) -> None:
        """Take an instance's newest digest; only what differs from the one before costs anything."""
        before = self._marks_of.get(instance, frozenset())
        if marks == before:
            return
        for mark in marks - before:
            self._holders.setdefault(mark, set()).add(instance)
        for mark in before - marks:
            holders = self._holders[mark]
            holders.remove(instance)
            if not holders:
                del self._holders[mark]
        self._marks_of[instance] = marks

    def keep(self, instances: Collection[str]) -> None:
        """Forget all others."""
        for gone in self._marks_of.keys() - instances:
            self.report(gone, frozenset())
            del self._marks_of[gone]

    def holders(self, marks: Sequence[int]) -> Iterator[Collection[str]]:
        """Who has the prompt whose marks these are, from the longest known beginning down."""
        if not self._holders:
            return
        for mark in reversed(marks):
            holders = self._holders.get(mark)
            if holders:
                yield holders
