"""The settings tables of docs/operations.md, out of the settings classes.

python -m tests.support.settings_table     writes them into the page
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from pydantic import SecretStr

from mesh.settings import ENV_PREFIX, ServiceSettings

__all__ = ["PAGE", "SERVICES", "refreshed", "settings_of"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SERVICES = ("gateway", "router", "inference", "metering")
_BLOCK = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = "| variable | default | meaning |\n| --- | --- | --- |\n"


def settings_of(service: str) -> type[ServiceSettings]:
    """A service's settings class; `all` is what every service shares."""
    if service == "all":
        return ServiceSettings
    name = f"{service.capitalize()}Settings"
    found: type[ServiceSettings] = getattr(importlib.import_module(f"{service}.config"), name)
    return found


def _row(name: str, cls: type[ServiceSettings]) -> str:
    field = cls.model_fields[name]
    value = "" if field.default is None else field.default
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    default = f"`{text}`" if text else ""
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{ENV_PREFIX}{name.upper()}` | {default} | {meaning} |\n"


def _table(service: str) -> str:
    cls = settings_of(service)
    shared = set() if service == "all" else set(ServiceSettings.model_fields)
    return _HEAD + "".join(_row(name, cls) for name in cls.model_fields if name not in shared)


def refreshed(page: str) -> str:
    """The page with every table as the settings classes have it now."""
    return _BLOCK.sub(lambda match: match[1] + _table(match[2]) + match[3], page)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
