"""The same tokens in all books, summed by day out of the ledger; synchronous, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, and_, case, func, or_, select

from metering.store.tables import USAGE

__all__ = ["DAY_MS", "BookStore", "DayBooks"]

DAY_MS = 86_400_000

_U = USAGE.c
_COMPUTED_TOLD = and_(_U.computed_tokens.is_not(None), _U.discarded_tokens.is_not(None))
_CLIENT_TOLD = and_(_U.acknowledged_tokens.is_not(None), _U.retained_tokens.is_not(None))
_DIFFERENT = or_(
    and_(_COMPUTED_TOLD, _U.computed_tokens != _U.completion_tokens + _U.discarded_tokens),
    and_(_CLIENT_TOLD, _U.completion_tokens != _U.acknowledged_tokens + _U.retained_tokens),
)


@dataclass(frozen=True, slots=True)
class DayBooks:
    """Sums of generations that ended on one day (UTC), over those whose other book was told.

    `computed` and `discarded` stand against `framed_of_computed`; `acknowledged` and `retained`
    against `framed_of_windowed`.
    """

    day_ms: int
    streams: int
    different: int
    computed: int
    discarded: int
    framed_of_computed: int
    acknowledged: int
    retained: int
    framed_of_windowed: int

    @property
    def balanced(self) -> bool:
        """Whether every stream and every sum agrees."""
        engine = self.computed == self.framed_of_computed + self.discarded
        client = self.framed_of_windowed == self.acknowledged + self.retained
        return engine and client and not self.different


class BookStore:
    """The ledger's database, read only. Methods raise `sqlalchemy.exc.SQLAlchemyError`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def days(self, since_ms: int = 0) -> list[DayBooks]:
        """Every day with generations that ended at `since_ms` or later, in order."""
        day = (_U.ended_ms - _U.ended_ms % DAY_MS).label("day")
        query = (
            select(
                day,
                func.count(),
                _sum_where(_DIFFERENT, 1),
                _sum_where(_COMPUTED_TOLD, _U.computed_tokens),
                _sum_where(_COMPUTED_TOLD, _U.discarded_tokens),
                _sum_where(_COMPUTED_TOLD, _U.completion_tokens),
                _sum_where(_CLIENT_TOLD, _U.acknowledged_tokens),
                _sum_where(_CLIENT_TOLD, _U.retained_tokens),
                _sum_where(_CLIENT_TOLD, _U.completion_tokens),
            )
            .where(_U.ended_ms >= since_ms)
            .group_by(day)
            .order_by(day)
        )
        with self._engine.connect() as connection:
            return [DayBooks(*(int(value) for value in row)) for row in connection.execute(query)]

    def different_streams(self, day_ms: int, limit: int) -> list[str]:
        """Ids of a day's streams whose books differ."""
        within = and_(_U.ended_ms >= day_ms, _U.ended_ms < day_ms + DAY_MS)
        query = select(_U.id).where(within, _DIFFERENT).order_by(_U.id).limit(limit)
        with self._engine.connect() as connection:
            return list(connection.execute(query).scalars())


def _sum_where(told: ColumnElement[bool], value: ColumnElement[int] | int) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((told, value), else_=0)), 0)
