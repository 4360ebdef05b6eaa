"""docs/operations.md lists every setting as its class declares it."""

from __future__ import annotations

import re

import pytest

from tests.support.settings_table import PAGE, SERVICES, refreshed, settings_of


def test_the_tables_are_what_the_classes_say() -> None:
    """No setting is missing, stale or told otherwise; `python -m tests.support.settings_table` repairs."""
    page = PAGE.read_text()
    assert re.findall(r"<!-- settings: (\w+) -->", page) == ["all", *SERVICES]
    assert refreshed(page) == page


@pytest.mark.parametrize("service", ["all", *SERVICES])
def test_every_setting_is_described(service: str) -> None:
    """A setting without a sentence is a riddle."""
    for name, field in settings_of(service).model_fields.items():
        assert field.description, name
