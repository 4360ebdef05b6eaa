"""Who is a member: instances with their leases. Pure: every method is told the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mesh.membership import Instance

__all__ = ["Member", "Registry", "RegistryFullError", "Snapshot"]

# An instance whose lease has ended without a word is kept so many leases more, as one of unknown
# load. If it has died, whoever holds a connection to it knows; if only its way to the router is cut,
# it must not be lost to those who can reach it (CASES 78).
LAPSED_LEASES = 100


class RegistryFullError(Exception):
    """The registry is at its bound of instances."""


@dataclass(frozen=True, slots=True)
class Member:
    """An instance and the time (seconds of the caller's clock) of its latest report."""

    instance: Instance
    reported_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All members at one revision, by id."""

    revision: int
    members: tuple[Member, ...]

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The members without their times."""
        return tuple(member.instance for member in self.members)


class Registry:
    """Leases by instance id; `revision` rises by one whenever the snapshot changes."""

    def __init__(self, lease_s: float, instances_max: int) -> None:
        self._lease_s = lease_s
        self._instances_max = instances_max
        self._members: dict[str, Member] = {}
        self.revision = 0

    def register(self, instance: Instance, now: float) -> bool:
        """Take or renew a lease; whether the snapshot changed.

        A process that is draining does not push out the one that replaced it under its id. Whoever
        comes to the address of one that has lapsed has replaced it. Raises `RegistryFullError` for
        one instance too many.
        """
        known = self._members.get(instance.id)
        if known is not None and instance.draining and _replaced(known, instance.start_id):
            return False
        if known is None or known.instance.address != instance.address:
            self._forget_lapsed_at(instance.address)
        if instance.id not in self._members and len(self._members) >= self._instances_max:
            raise RegistryFullError
        self._members[instance.id] = Member(instance, now)
        return self._changed(known is None or known.instance != instance)

    def leave(self, instance_id: str, start_id: str) -> bool:
        """Take an instance out at once; nothing happens when another process has its id by now."""
        known = self._members.get(instance_id)
        if known is None or _replaced(known, start_id):
            return False
        del self._members[instance_id]
        return self._changed(True)

    def expire(self, now: float) -> bool:
        """Mark those whose lease has ended, drop those long lapsed; whether there were any."""
        before = self._members
        self._members = {}
        for instance_id, member in before.items():
            leases = (now - member.reported_at) / self._lease_s
            if leases > LAPSED_LEASES:
                continue
            lapses = leases >= 1 and not member.instance.lapsed
            self._members[instance_id] = _lapsed(member) if lapses else member
        return self._changed(before != self._members)

    def _forget_lapsed_at(self, address: str) -> None:
        self._members = {
            instance_id: member
            for instance_id, member in self._members.items()
            if not (member.instance.lapsed and member.instance.address == address)
        }

    def snapshot(self) -> Snapshot:
        """Everybody, in the order of their ids."""
        return Snapshot(self.revision, tuple(m for _, m in sorted(self._members.items())))

    def _changed(self, changed: bool) -> bool:
        self.revision += changed
        return changed


def _lapsed(member: Member) -> Member:
    return Member(replace(member.instance, load=None, lapsed=True), member.reported_at)


def _replaced(known: Member, start_id: str) -> bool:
    return known.instance.start_id != start_id
