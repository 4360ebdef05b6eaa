"""Who is known to have a prompt's beginning."""

from __future__ import annotations

from router.policy.prefixes import PrefixDirectory


def _holders(directory: PrefixDirectory, *marks: int) -> list[set[str]]:
    return [set(ids) for ids in directory.holders(marks)]


def test_the_longest_beginning_comes_first() -> None:
    """Marks are asked for from the last to the first."""
    directory = PrefixDirectory()
    directory.report("a", frozenset({1, 2}))
    directory.report("b", frozenset({1}))
    assert _holders(directory, 1, 2, 3) == [{"a"}, {"a", "b"}]
    assert _holders(directory, 9) == []
    assert _holders(directory) == []


def test_the_newest_report_counts() -> None:
    """What is not reported any more is not held any more."""
    directory = PrefixDirectory()
    directory.report("a", frozenset({1, 2}))
    directory.report("a", frozenset({2, 3}))
    assert _holders(directory, 1) == []
    assert _holders(directory, 2, 3) == [{"a"}, {"a"}]


def test_who_left_holds_nothing() -> None:
    """Only members are named, and nothing is kept of others."""
    directory = PrefixDirectory()
    directory.report("a", frozenset({1}))
    directory.report("b", frozenset({1}))
    directory.keep({"b"})
    assert _holders(directory, 1) == [{"b"}]
    directory.keep(set())
    assert (directory._holders, directory._marks_of) == ({}, {})
