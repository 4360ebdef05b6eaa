"""A service's command line, derived from its settings class: one flag for each field.

`--lease-ms X` overrides `SEEDANCE_LEASE_MS`, which overrides the default. A field may name a second
flag, one that users of other servers know (`json_schema_extra={"flag": …}`). A secret has no flag:
everybody on the machine can read a process list.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn, TypeVar

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from mesh.settings import ENV_PREFIX, ServiceSettings, exit_with, load_settings

__all__ = ["settings_from_flags"]

S = TypeVar("S", bound=ServiceSettings)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print every flag there is before it."""
        exit_with(f"{message}; `{self.prog} --help` lists the flags")


def settings_from_flags(
    cls: type[S], prog: str, description: str, argv: Sequence[str] | None = None
) -> S:
    """Read the settings from flags, then environment, then defaults.

    Values are checked by the settings class; a fault ends the process with one line (exit code 2).
    """
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    for name, field in cls.model_fields.items():
        if field.annotation is SecretStr:
            continue
        # What is empty by default says in its description what that means.
        default = (
            "" if field.default in (None, "", PydanticUndefined) else f" Default: {field.default}."
        )
        text = f"{field.description or name}{default} [{ENV_PREFIX}{name.upper()}]"
        flag = "--" + name.replace("_", "-")
        help_text = text.replace("%", "%%")
        extra = field.json_schema_extra
        flags = [flag, str(extra["flag"])] if isinstance(extra, dict) else [flag]
        if field.annotation is bool:
            parser.add_argument(
                *flags, action=argparse.BooleanOptionalAction, default=None, help=help_text
            )
        else:
            metavar = name.rsplit("_", 1)[-1].upper()
            parser.add_argument(*flags, default=None, metavar=metavar, help=help_text)
    return load_settings(cls, **vars(parser.parse_args(argv)))
