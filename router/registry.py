"""Who is a member: instances with live leases. Pure: every method is told the time."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.membership import Instance

__all__ = ["Member", "Registry", "RegistryFullError", "Snapshot"]


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

        A process that is draining does not push out the one that replaced it under its id.
        Raises `RegistryFullError` for one instance too many.
        """
        known = self._members.get(instance.id)
        if known is None and len(self._members) >= self._instances_max:
            raise RegistryFullError
        if known is not None and instance.draining and _replaced(known, instance.start_id):
            return False
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
        """Take out those whose lease ended; whether there were any."""
        gone = [
            instance_id
            for instance_id, member in self._members.items()
            if now - member.reported_at >= self._lease_s
        ]
        for instance_id in gone:
            del self._members[instance_id]
        return self._changed(bool(gone))

    def snapshot(self) -> Snapshot:
        """Everybody, in the order of their ids."""
        return Snapshot(self.revision, tuple(m for _, m in sorted(self._members.items())))

    def _changed(self, changed: bool) -> bool:
        self.revision += changed
        return changed


def _replaced(known: Member, start_id: str) -> bool:
    return known.instance.start_id != start_id
