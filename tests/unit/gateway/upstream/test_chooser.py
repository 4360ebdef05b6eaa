"""Whom a gateway sends a key to, by what it knows of its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.upstream.base import PressureLevel, Where
from gateway.upstream.breaker import Breaker, BreakerState
from gateway.upstream.chooser import LOOK_EVERY_S, Chooser
from gateway.upstream.ejection import EJECTED_S, FAILURES_IN_A_ROW
from gateway.upstream.member import Member
from mesh.canary import CanaryPhase, CanaryState
from mesh.membership import Instance, Load
from tests.support.clock import FakeClock

USERS = [Where(f"user-{n}", "m") for n in range(200)]


class _Link:
    """What a member asks of its link."""

    def __init__(self) -> None:
        self.ready = True
        self.load = 0
        self.pressure = PressureLevel.NONE


class _Scene:
    """Some instances, a link to each, and a chooser over them."""

    def __init__(self, count: int = 4, **fields: Any) -> None:
        self.clock = FakeClock()
        self.canary = CanaryState()
        self.links = {f"i{n}": _Link() for n in range(count)}
        self.instances = {
            name: Instance(name, f"h:{name}", ("m",), load=Load(), **fields) for name in self.links
        }
        self.members = {
            name: Member(self.instances[name], Breaker(lambda: 0.0, lambda _: None), {link: None})  # type: ignore[dict-item]
            for name, link in self.links.items()
        }
        self.chooser = Chooser(self.members, lambda: tuple(self.instances.values()), self.clock)

    def look(self) -> None:
        self.clock.advance(LOOK_EVERY_S)

    def sent(self) -> Counter[str | None]:
        """Whom each of the users is sent to; they leave at once."""
        counts: Counter[str | None] = Counter()
        for where in USERS:
            self.look()
            counts[self.chooser.choose(where, self.canary)] += 1
        return counts


def _eject(scene: _Scene, name: str) -> None:
    for _ in range(FAILURES_IN_A_ROW):
        scene.members[name].ejection.ended(scene.clock.monotonic(), failed=True)


def _no_link(scene: _Scene) -> None:
    scene.links["i0"].ready = False


def _paused(scene: _Scene) -> None:
    scene.links["i0"].pressure = PressureLevel.PAUSE


def _open(scene: _Scene) -> None:
    scene.members["i0"].breaker.state = BreakerState.OPEN


def _half_open(scene: _Scene) -> None:
    for member in scene.members.values():
        member.breaker.state = BreakerState.HALF_OPEN
        member.breaker.take_probe()  # somebody else's turn it was


def _ejected(scene: _Scene) -> None:
    scene.members["i0"].ejection._wait_s = 1e6
    _eject(scene, "i0")


def _drained(scene: _Scene) -> None:
    scene.instances["i0"] = replace(scene.instances["i0"], draining=True)


def _busy(scene: _Scene) -> None:
    scene.instances["i0"] = replace(scene.instances["i0"], load=Load(running=99))


@pytest.mark.parametrize("fault", [_no_link, _paused, _open, _ejected, _busy])
def test_one_that_is_unfit_gets_nothing_new(fault: Callable[[_Scene], None]) -> None:
    """Out of reach, full, late, failing or over its share: its keys, and no others, go elsewhere."""
    scene = _Scene()
    before = scene.sent()
    fault(scene)
    after = scene.sent()
    assert set(before) == {"i0", "i1", "i2", "i3"}
    assert set(after) == {"i1", "i2", "i3"}
    assert all(after[name] >= before[name] for name in after)


@pytest.mark.parametrize(("fault", "is_used"), [(_paused, True), (_open, True), (_no_link, False)])
def test_an_unfit_one_is_better_than_nobody(fault: Callable[[_Scene], None], is_used: bool) -> None:
    """Where no other is left it is asked all the same, if it can be reached at all."""
    scene = _Scene(1)
    fault(scene)
    assert scene.chooser.choose(USERS[0], scene.canary) == ("i0" if is_used else None)


def test_where_all_are_half_open_everybody_is_sent_somewhere() -> None:
    """What a gateway that stood still suspects of all its instances refuses nobody."""
    scene = _Scene()
    _half_open(scene)
    assert set(scene.sent()) == {"i0", "i1", "i2", "i3"}


def test_a_change_that_is_told_counts_at_once() -> None:
    """After `forget` no moment passes before the next choice knows."""
    scene = _Scene(2)
    first = scene.chooser.choose(USERS[0], scene.canary)
    assert first is not None
    scene.links[first].ready = False
    scene.chooser.forget()
    assert scene.chooser.choose(USERS[0], scene.canary) not in (None, first)


def test_what_is_given_within_a_moment_is_counted() -> None:
    """CASES 68: a burst between two looks is bounded as if one had looked each time."""
    scene = _Scene(4)
    counts = Counter(scene.chooser.choose(Where("one", "m"), scene.canary) for _ in range(400))
    assert len(counts) == 4
    assert max(counts.values()) <= 1.25 * 100 + 1


def test_a_report_takes_ones_own_streams_in() -> None:
    """A stream that an instance has reported is not counted a second time."""
    scene = _Scene(1)
    scene.links["i0"].load = 5
    scene.chooser.choose(USERS[0], scene.canary)
    scene.instances["i0"] = replace(scene.instances["i0"], load=Load(running=9), report=1)
    scene.look()
    scene.chooser.choose(USERS[0], scene.canary)
    standing = scene.members["i0"].standing
    assert (standing.own, standing.own_reported) == (5, 5)
    scene.links["i0"].load = 6
    assert scene.members["i0"].standing.own_reported == 5


def test_an_outlier_is_back_for_a_probe() -> None:
    """After its time the next stream goes there; when that fails too it is out again at once."""
    scene = _Scene(4)
    _eject(scene, "i0")
    assert scene.sent()["i0"] == 0
    scene.clock.advance(EJECTED_S)
    assert scene.sent()["i0"] > 0
    scene.members["i0"].ejection.ended(scene.clock.monotonic(), failed=True)
    assert scene.sent()["i0"] == 0


def test_when_most_fail_nobody_is_an_outlier() -> None:
    """What fails everywhere is not an instance's fault, and must not stop the service."""
    scene = _Scene(4)
    for name in ("i0", "i1", "i2"):
        _eject(scene, name)
    assert set(scene.sent()) == {"i0", "i1", "i2", "i3"}


def test_stale_reports_stop_nothing() -> None:
    """CASES 78: with all loads unknown everybody keeps its keys."""
    scene = _Scene(4)
    before = scene.sent()
    scene.instances = {n: replace(i, load=None, lapsed=True) for n, i in scene.instances.items()}
    assert scene.sent() == before


def test_two_gateways_decide_alike() -> None:
    """CASES 70: 100 sessions of five turns over two gateways in turn: all on their session's instance."""
    gateways = [_Scene(4), _Scene(4)]
    for gateway in gateways:
        gateway.instances = {
            n: replace(i, load=Load(running=7 + 2 * int(n[1])))
            for n, i in gateway.instances.items()
        }
    for session in range(100):
        where = Where(f"session-{session}", "m")
        chosen = set()
        for turn in range(5):
            gateway = gateways[(session + turn) % 2]
            gateway.look()
            chosen.add(gateway.chooser.choose(where, gateway.canary))
        assert len(chosen) == 1


def test_the_longest_known_prefix_wins() -> None:
    """A prompt goes where its beginning is cached, and home when nobody says so any more."""
    scene = _Scene(4)
    home = scene.chooser.choose(Where("ann", "m"), scene.canary)
    other = next(name for name in scene.links if name != home)
    scene.chooser.prefixes.report(other, frozenset({11}))
    assert scene.chooser.choose(Where("ann", "m", prefix=(11, 12)), scene.canary) == other
    assert scene.chooser.choose(Where("ann", "m", prefix=(12, 13)), scene.canary) == home
    scene.chooser.prefixes.report(other, frozenset())
    assert scene.chooser.choose(Where("ann", "m", prefix=(11, 12)), scene.canary) == home


def test_canary_keys_and_whoever_asks() -> None:
    """A share goes to the canary, and who asks; each is the other's way out."""
    scene = _Scene(4)
    scene.instances["i0"] = replace(scene.instances["i0"], canary=True)
    assert scene.sent()["i0"] == 0
    asking = replace(USERS[0], canary=True)
    scene.look()
    assert scene.chooser.choose(asking, scene.canary) == "i0"
    scene.canary = CanaryState(1, CanaryPhase.RUNNING, 5_000)
    assert 60 < scene.sent()["i0"] < 140
    scene.links["i0"].ready = False
    assert scene.sent()["i0"] == 0
    scene.links["i0"].ready = True
    scene.canary = CanaryState(2, CanaryPhase.ROLLED_BACK)
    scene.look()
    assert scene.chooser.choose(asking, scene.canary) != "i0"
    for name in ("i1", "i2", "i3"):
        scene.links[name].ready = False
    assert scene.sent() == {"i0": len(USERS)}


def test_classes() -> None:
    """`instance=high-perf` goes to that class alone."""
    scene = _Scene(4, instance_class="standard")
    scene.instances["i0"] = replace(scene.instances["i0"], instance_class="high-perf")
    chosen = {
        scene.chooser.choose(replace(w, instance_class="high-perf"), scene.canary) for w in USERS
    }
    assert chosen == {"i0"}
    assert "i0" not in scene.sent()


def test_draining_is_seen_with_the_membership() -> None:
    """The pool tells when the membership changed: from then on a draining one gets nothing new."""
    scene = _Scene(4)
    assert scene.sent()["i0"] > 0
    _drained(scene)
    scene.chooser.forget()
    assert scene.sent()["i0"] == 0


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients who invent classes fill no memory."""
    monkeypatch.setattr("gateway.upstream.chooser.TABLES_MAX", 10)
    scene = _Scene(1, instance_class="standard")
    for n in range(100):
        assert scene.chooser.choose(Where("ann", "m", f"class-{n}"), scene.canary) is None
        assert len(scene.chooser._tables) <= 10
