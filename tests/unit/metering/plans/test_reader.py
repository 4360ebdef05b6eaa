"""A plan file is read strictly, and every refusal names file, line and remedy."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from mesh.document import DocumentError
from metering.plans.model import Tier
from metering.plans.reader import PLAN_BYTES_MAX, read_plans
from tests.support.plans import ALL_MODES, book, plan_text

SECOND_VERSION = """
      - version: "later"
        since: 2026-11-16
        prices:
          requests: {per_request: 1}
"""


def test_every_part_is_read_exactly() -> None:
    """Prices are the decimals that the file spells."""
    read = book(ALL_MODES, time_zone="Asia/Shanghai")
    assert (read.currency, read.zone.key, read.plan_of("acme")) == (
        "CNY",
        "Asia/Shanghai",
        "standard",
    )
    (version,) = read.plans["standard"]
    prices = version.prices
    assert prices.connection_second == Decimal("0.0012")
    assert prices.request == Decimal("0.001")
    assert prices.tiers == (
        Tier(50, Decimal(299)),
        Tier(200, Decimal(899)),
        Tier(None, Decimal(2999)),
    )
    price = prices.of_model("any")
    assert price is not None
    assert price.output_per_1000 == Decimal("0.16")


def test_gamma_is_a_share_of_beta() -> None:
    """Without gamma a byte weighs 0.2 % more for every millisecond of round trip."""
    price = book(ALL_MODES).plans["standard"][0].prices.time_bandwidth
    assert price is not None
    assert price.gamma_per_byte_ms == Decimal("0.000000000004")


def test_versions_follow_each_other() -> None:
    """A later version begins on the day that the earlier one ends before."""
    first, second = book(more=SECOND_VERSION).plans["standard"]
    assert (first.until, second.since) == (date(2026, 11, 16), date(2026, 11, 16))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"0.08"', "0.08", 'plans.yaml:13: `input_per_1000` is a binary float; write "0.08" in'),
        ('"0.08"', '"-1"', "plans.yaml:13: `input_per_1000` is negative; a price is 0 or more"),
        ('"0.08"', "-1", "plans.yaml:13: `input_per_1000` is negative"),
        ('"0.08"', '"1e3"', "`input_per_1000` is no decimal"),
        ('"0.08"', '"٣"', "`input_per_1000` is no decimal"),
        ('"0.08"', "true", "`input_per_1000` is no decimal"),
        ('"0.08"', ".nan", "`input_per_1000` is a binary float"),
        ('"0.08"', "{a: 1}", "`input_per_1000` is no number"),
        ("currency: CNY", "currency: yuan", "plans.yaml:2: `currency` is no ISO 4217 code"),
        ("time_zone: UTC", "time_zone: Mars/Base", "plans.yaml:3: `time_zone` 'Mars/Base' is not"),
        ("time_zone: UTC", "time_zone: ../etc", "plans.yaml:3: `time_zone`"),
        ("half_up", "random", "plans.yaml:4: unknown mode `random`; known: half_up"),
        ("digits: 2", "digits: 9", "plans.yaml:4: `digits` is out of range; it is between 0 and 6"),
        ("default_plan: standard", "default_plan: gold", "plans.yaml:5: no plan is called `gold`"),
        ("format: 1", "format: 2", "plans.yaml:1: `format` is out of range"),
        ("format: 1", "format: 1\nformat: 1", "plans.yaml:2: `format` stands twice"),
        ("format: 1", "format: 1\nvat: 3", "plans.yaml:2: unknown field `vat`; known here: format"),
        ("currency: CNY\n", "", "plans.yaml:1: `currency` is missing; add it"),
        ("since: 2000-01-01", "since: 2000-02-30", "plans.yaml:9: `since` is no day"),
        ("since: 2000-01-01", "since: soon", "plans.yaml:9: `since` is no date"),
        ("since: 2000-01-01", "since: 2000-01-01\n        until: 1999-01-01", "does not follow"),
        ("to: 50", "to: 60", "tiers overlap; this one begins at 61"),
        ("to: 50", "to: 40", "tiers leave a gap; this one begins at 41"),
        ("from: 201,", "from: 201, to: 300,", "the last tier has an end"),
        ("from: 51, to: 200", "from: 51", "a tier follows the one without `to`"),
        ('["*"]', "[]", "a list is due"),
        ('["*"]', '["a", "a"]', "model `a` has a price in line 12 already"),
        ("format: 1", "format: [", "plans.yaml:"),
        ("format: 1", "format: !!python/object:os.system 1", "`format` is no whole number"),
    ],
)
def test_bad_file_is_refused_with_line_and_remedy(old: str, new: str, says: str) -> None:
    """Each mistake is refused at load."""
    text = plan_text(ALL_MODES).decode()
    assert old in text
    with pytest.raises(DocumentError) as refused:
        read_plans(text.replace(old, new, 1).encode(), "plans.yaml")
    assert says in str(refused.value)
    assert "; " in str(refused.value)


@pytest.mark.parametrize("since", ["2026-11-15", "2000-01-01", "1990-01-01"])
def test_overlapping_versions_are_refused(since: str) -> None:
    """No day has two prices."""
    with pytest.raises(
        DocumentError, match=r"plans.yaml:\d+: version `later` overlaps version `2000`"
    ):
        book(more=SECOND_VERSION.replace("2026-11-16", since))


def test_two_prices_for_one_model_are_refused() -> None:
    """CASES 96: rules for {aws, gcp} and for {aws} cannot stand in one plan."""
    rule = "{{models: [{}], input_per_1000: 1, cached_per_1000: 1, output_per_1000: 1}}"
    rules = "".join(f"\n            - {rule.format(m)}" for m in ("aws, gcp", "aws"))
    with pytest.raises(DocumentError, match=r"plans.yaml:13: model `aws` has a price in line 12"):
        book(f"\n          tokens:{rules}")


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"- 1", b"a: *b", b"[" * 5_000, b"#" * (PLAN_BYTES_MAX + 1), b"a: \x00"]
)
def test_no_plan_file_at_all(text: bytes) -> None:
    """Whatever the bytes are, the refusal is a `DocumentError`."""
    with pytest.raises(DocumentError, match=r"^plans\.yaml:1: "):
        read_plans(text, "plans.yaml")
