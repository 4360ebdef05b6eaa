"""`seedance roi`: which way of charging is cheapest for the traffic of an access log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path

from launcher.invoice import write_out
from mesh.document import DocumentError
from mesh.settings import exit_with
from metering.plan_shelf import load_plans
from metering.plans.model import PlanBook, PlanVersion
from metering.roi.access_log import FIELDS, LINE_LENGTH_MAX, Access, LogReader
from metering.roi.decision import CRITERIA, NOT_IN_PLAN, WEIGHTS, Option, options_of
from metering.roi.measure import Traffic, bursts_of, measure
from metering.roi.page import NAMES, Report, to_html

__all__ = ["run_roi"]

# What-ifs that stand beside the one that was asked for.
THRESHOLDS = (Fraction(3, 2), Fraction(2), Fraction(3), Fraction(5))


def run_roi(
    logs: Sequence[Path],
    plans: Path,
    *,
    plan: str,
    pattern: str,
    fields: Sequence[str],
    weights: Sequence[str],
    threshold: float,
    output: Path,
) -> None:
    """Read the logs, write the report, and say the result in a line."""
    reader = LogReader(_pattern(pattern), _names(fields))
    traffic = _measure(reader, logs)
    try:
        book = load_plans(plans)
    except DocumentError as error:
        exit_with(str(error))
    version = _version(book, plan or book.default_plan)
    weighed = _weights(weights)
    asked = Fraction(str(threshold))
    options = options_of(traffic, version, book.rounding, weighed)
    report = Report(
        traffic,
        options,
        [bursts_of(traffic, times) for times in sorted({asked, *THRESHOLDS})],
        asked,
        weighed,
        book.currency,
        f"{plan or book.default_plan}, version {version.name}",
        reader.bad_lines,
        reader.first_bad,
    )
    write_out(to_html(report), output)
    best = options[0]
    if best.month_cost is None:
        lacking = _lacking(options)
        exit_with(
            f"nothing of plan {plan or book.default_plan} can be priced ({lacking}); "
            f"--plan names another of {', '.join(book.plans)}; the traffic is in {output}"
        )
    print(f"{NAMES[best.mode]}: {best.month_cost:.2f} {book.currency} a month; see {output}")


def _measure(reader: LogReader, logs: Sequence[Path]) -> Traffic:
    try:
        traffic = measure(_accesses(reader, logs))
    except OSError as error:
        exit_with(f"cannot read {error.filename}: {error.strerror}")
    except ValueError as error:
        exit_with(str(error))
    if traffic is None:
        where = (
            f"; the first that is not understood is {reader.first_bad}" if reader.bad_lines else ""
        )
        exit_with(f"there is no request in the log{where}; --pattern and --field tell its form")
    return traffic


def _accesses(reader: LogReader, logs: Sequence[Path]) -> Iterator[Access]:
    for log in logs:
        with log.open("rb") as file:
            # A line without an end is read in pieces, none of which is a request.
            yield from reader.read(iter(lambda: file.readline(LINE_LENGTH_MAX + 1), b""), str(log))


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        exit_with(f"--pattern: {error}")
    unknown = set(pattern.groupindex) - set(FIELDS)
    if unknown or not {"time", "status"} <= set(pattern.groupindex):
        exit_with(f"--pattern: name its groups time, status, and any of {', '.join(FIELDS[2:])}")
    return pattern


def _names(fields: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for field in fields:
        name, _, key = field.partition("=")
        if name not in FIELDS or not key:
            exit_with(f"--field {field!r}: write NAME=KEY, NAME one of {', '.join(FIELDS)}")
        names[name] = key
    return names


def _weights(given: Sequence[str]) -> dict[str, Decimal]:
    weights = dict(WEIGHTS)
    for item in given:
        name, _, text = item.partition("=")
        try:
            weight = Decimal(text)
        except InvalidOperation:
            weight = Decimal(-1)
        if name not in weights or not weight.is_finite() or weight < 0:
            exit_with(f"--weight {item!r}: write NAME=0.35, NAME one of {', '.join(CRITERIA)}")
        weights[name] = weight
    if not sum(weights.values()):
        exit_with("--weight: one weight must be above 0")
    return weights


def _lacking(options: Sequence[Option]) -> str:
    """What keeps those ways from a price that the plan has one for."""
    said = [f"{NAMES[o.mode]}: {o.missing}" for o in options if o.missing != NOT_IN_PLAN]
    return "; ".join(said) or "it has no prices"


def _version(book: PlanBook, plan: str) -> PlanVersion:
    if plan not in book.plans:
        exit_with(f"--plan {plan!r}: there are {', '.join(book.plans)}")
    return book.plans[plan][-1]
