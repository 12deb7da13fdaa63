"""What a rule tells the user to set, against what the deployment has set already."""

from __future__ import annotations

import re
from typing import Any

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)[ =]([\w./]+)")
_SWITCH = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}
_VARIABLE = re.compile(r"(?<!\w)(SGLANG_\w+)=(\S+)")


def already_set(command: str | None, settings: dict[str, Any]) -> list[str]:
    """The options and variables in ``command`` that have its very value in ``settings`` (attribute names as keys)."""
    if command is None or command.startswith("remove "):
        return []
    found = [(f"--{name} {value}", name.replace("-", "_"), value) for name, value in _OPTION.findall(command)]
    found += [(f"{name}={value}", name, value) for name, value in _VARIABLE.findall(command)]
    return [shown for shown, key, value in found if _same(settings.get(key), value)]


def _same(have: Any, wanted: str) -> bool:
    if have is None:
        return False
    try:
        return float(have) == float(wanted)
    except (TypeError, ValueError):
        return _SWITCH.get(str(have).lower(), str(have).lower()) == _SWITCH.get(wanted.lower(), wanted.lower())
