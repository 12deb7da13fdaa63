"""What the kernel says of GPUs, their links and the machine's hardware: Xid, SXid, NVLink, PCIe, machine checks.

Kinds: ``kernel_xid`` (``family`` and ``cause`` after ``rules/vocabulary/xid.yaml``), ``kernel_sxid`` (an NVSwitch;
``fatal``), ``kernel_gpu`` (the driver gave a GPU or an NVLink up without an Xid), ``kernel_aer`` and ``kernel_mce``
(``corrected`` says that work goes on).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from hicache_doctor.errors import DoctorError
from hicache_doctor.shipped import rules_dir

_PID = r"pid\s*=\s*'?(?P<pid>\d{1,10}|<unknown>|[^,\s']*)'?"
_XID = re.compile(
    rf"(?:NVRM: )?(?<!S)\bXid \((?P<pci>[^()]{{1,40}})\): (?P<xid>\d{{1,5}})(?:, {_PID})?"
    r"(?:, name\s*=\s*'?(?P<name>[^,']*?)'?(?=,|$))?"
)
_PLUGIN = re.compile(r"\bXidCriticalError: Xid=(?P<xid>\d{1,5}) on Device=(?P<device>[\w-]{1,60})")
_RECOVERY = re.compile(r"GPU recovery action changed from \S+ \([^)]*\) to \S+ \((?P<action>[^)]*)\)")
_OFF_BUS = re.compile(
    # The sentence may be wrapped over three lines of the kernel's; the last one alone says it.
    r"NVRM:(?:.*?\bGPU\b(?:.*?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}))?)?.*fallen off the bus"
)
# The first line of that sentence, and of the one that names the board.
_NAMES_GPU = re.compile(r"NVRM:.*\bGPU\b.*?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")
# Of an SXid the first line has the class and the link; lines with its severity and its data follow.
_SXID = re.compile(
    r"(?:(?P<switch>nvidia-nvswitch\d{1,3}): )?SXid \((?P<pci>[^()]{1,40})\): (?P<sxid>\d{1,6}), "
    r"(?P<fatal>Fatal|Non-fatal)(?:,? Link (?P<link>\d{1,4}))?(?P<what>[^{]*)"
)
_GIVEN_UP = re.compile(
    r"NVRM:.*?(?P<what>RmInitAdapter failed|NVLink: fatal error|GPU is lost|GPU has been lost|"
    r"API_GPU_ATTACHED_SANITY_CHECK failed|rm_init_adapter failed)"
)
_AER = re.compile(
    r"(?:(?P<driver>[\w-]{1,32}) )?(?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d):? "
    r"(?:AER: (?:Multiple )?(?P<kind>(?:Unc|C)orrect(?:ed|able))(?: \((?P<fatal>Fatal|Non-Fatal)\))? error"
    r"|(?:AER: )?PCIe Bus Error: severity=(?P<kind2>(?:Unc|C)orrect(?:ed|able))(?: \((?P<fatal2>Fatal|Non-Fatal)\))?)"
)
_MCE = re.compile(
    r"\bmce: .*(?:Hardware Error|Machine [Cc]heck)|Machine [Cc]heck Exception|EDAC \S+: .*\b(?P<edac>UE|CE)\b|"
    r"\[Hardware Error\]: (?:event severity: (?P<severity>\w+)|Machine check events logged)|"
    r"Memory failure: 0x[0-9a-f]+: (?P<memory>.*)"
)
_WORDS = ("Xid", "fallen off", "NVRM", "PCIe Bus Error", "AER:")


@cache
def xid_table() -> dict[int, dict[str, Any]]:
    """Xid → family, cause and meaning; empty when the shipped data cannot be read."""
    import yaml

    try:
        data = yaml.safe_load((rules_dir() / "vocabulary" / "xid.yaml").read_text(encoding="utf-8"))
        return {int(row["xid"]): row for row in data}
    except (DoctorError, OSError, yaml.YAMLError, TypeError, KeyError, ValueError):
        return {}


def read_gpu(text: str) -> tuple[str, dict[str, Any], int] | None:
    """(kind, fields, where the message starts) of one line; None when it says none of these."""
    if any(word in text for word in _WORDS):
        if m := _XID.search(text):
            return "kernel_xid", _xid(int(m.group("xid")), m), m.start()
        if m := _SXID.search(text):
            fields = {"sxid": int(m["sxid"]), "pci": _pci(m["pci"]), "fatal": m["fatal"] == "Fatal", "link": m["link"]}
            return "kernel_sxid", fields | {"switch": m["switch"], "what": m["what"].strip(" ,")[:120]}, m.start()
        if m := _PLUGIN.search(text):
            return "kernel_xid", _xid(int(m["xid"]), m) | {"device": m["device"]}, m.start()
        if m := _OFF_BUS.search(text):
            return "kernel_xid", _xid(79, m) | {"inferred": True}, m.start()
        if m := _GIVEN_UP.search(text):
            return "kernel_gpu", {"what": m["what"]}, m.start()
        if m := _AER.search(text):
            corrected = (m["kind"] or m["kind2"]).startswith("Correct")
            fatal = "Fatal" in (m["fatal"], m["fatal2"])
            return (
                "kernel_aer",
                {"pci": m["pci"], "driver": m["driver"], "corrected": corrected, "fatal": fatal},
                m.start(),
            )
    if m := _MCE.search(text):
        corrected = m["edac"] == "CE" or (m["severity"] or "").lower() in {"corrected", "info"}
        corrected |= "Recovered" in (m["memory"] or "")
        return "kernel_mce", {"corrected": corrected}, m.start()
    return None


def named_gpu(text: str) -> str | None:
    """The PCI address of the GPU that an NVRM line names."""
    m = _NAMES_GPU.search(text) if "NVRM" in text else None
    return _pci(m["pci"]) if m else None


def _pci(text: str | None) -> str | None:
    return re.sub(r"^PCI:", "", text or "") or None


def _xid(code: int, m: re.Match[str]) -> dict[str, Any]:
    groups = m.groupdict()
    known = xid_table().get(code, {})
    pid, name = groups.get("pid") or "", (groups.get("name") or "").strip()
    fields = {
        "xid": code,
        "pci": _pci(groups.get("pci")),
        "pid": int(pid) if re.fullmatch("[0-9]+", pid) else None,
        "name": name if name and name != "<unknown>" else None,
        "family": known.get("family", "unknown"),
        "cause": known.get("cause"),
        "meaning": known.get("meaning"),
    }
    if recovery := _RECOVERY.search(m.string):
        fields["recovery"] = recovery["action"]
    return fields
