"""`gateway.tenants.reader`: budgets of tenants and keys."""

from __future__ import annotations

import pytest

from gateway.budgets.model import Budget, Period, Unit
from gateway.tenants.reader import read_tenants
from mesh.document import DocumentError

DIGEST = "0b75f7a9f15e2ea3de85c4d34a5ac7a3b1ee2f2b1ac8dc4b7bb1a1c7a0f3a5d1"
FILE = f"""
format: 1
tenants:
  acme:
    keys:
      - {{sha256: "{DIGEST}", name: web, budgets: [7 tokens/day]}}
    budgets: [2.5 money/month soft 2]
"""


def test_budgets_of_tenant_and_key() -> None:
    """A key's budget bears its name; money is in billionths."""
    assert read_tenants(FILE.encode(), "t.yaml").tenant("acme").budgets == (
        Budget("acme", "", Unit.MONEY, Period.MONTH, 2_500_000_000, 2_000_000_000),
        Budget("acme", "web", Unit.TOKENS, Period.DAY, 7),
    )


def test_what_is_no_budget_is_refused_with_its_line() -> None:
    """File, line and remedy, as for everything in that file."""
    with pytest.raises(DocumentError, match=r"t\.yaml:6: .*budgets.*soft AMOUNT"):
        read_tenants(FILE.replace("7 tokens/day", "7 tokens").encode(), "t.yaml")
