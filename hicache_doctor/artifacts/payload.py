"""What sits in a whole line rather than at its start: escapes, entities, JSON objects, glued and collapsed text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from hicache_doctor.artifacts import when
from hicache_doctor.artifacts.sglang_prefix import RANK_TOKEN

_ANSI = re.compile(r"\x1b(?:\[[0-?]*(?: q|[!-/]?[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+#%][0-~]|[0-OQ-WYZ\\^_`-~])")
_CARET_ANSI = re.compile(r"\^\[\[[0-9;]*m|(?<!001b)(?<!x1b)(?<!033)\[\d{1,3}(?:;\d{1,3})*m", re.IGNORECASE)
_PROGRESS = re.compile(r"\d{1,3}%\|")
_ENTITY = re.compile(r"&(gt|lt|quot|amp|apos|nbsp|#0?39|#x27|#34|#96|#x60|#62|#60);")
_ENTITIES = {"gt": ">", "lt": "<", "quot": '"', "amp": "&", "apos": "'", "nbsp": " ", "#39": "'", "#039": "'",
             "#x27": "'", "#34": '"', "#96": "`", "#x60": "`", "#62": ">", "#60": "<"}  # fmt: skip
_LINK = re.compile(r"\[(#\d+)\]\(https?://[^)\s]*\)")
_ESCAPED = re.compile(r'[^"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*)*')
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\](?: \(Ray deduplicates.*)?$", re.DOTALL)

_START = re.compile(
    r"\[rank\d+\]:\s?\[[DIWEF]\d{3,4} \d\d:\d\d:\d\d"
    r"|\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?P<words>(?: [\w.]+)*)\] ",
    re.ASCII,
)
_QUOTING = ("ReqInput(", "Receive: ", "Finish: ", "text='", 'text="', "text':", 'text":', "prompt=", "prompt'",
            'prompt"', "content'", 'content"', "input_text")  # fmt: skip
_RANKED = re.compile(RANK_TOKEN, re.ASCII)

_FRAME = re.compile(r'\sFile "([^"]*)", line (\d+)(?:, in (\S+))?')
_COLLAPSED = re.compile(r'Traceback \(most recent call last\):(?=\s+File "[^"]*", line \d+)')
_RAISED = re.compile(
    r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Full|Empty|Iteration|Failure|Warning|Aborted)(?=:\s|:?$).*)",
    re.DOTALL,
)
_BETWEEN = re.compile(
    r"\s(?=(?:During handling of the above exception, another|The above exception was the direct cause)"
    r"|Traceback \(most recent call last\):)"
)
_CARETS = re.compile(r"[~^]{2,}(?=\s|$)")

_HALF = re.compile("[\ud800-\udfff]")
_TEXT_KEYS = ("log", "message", "msg", "line", "text", "body", "textPayload", "MESSAGE", "@message", "_raw")
_TIME_KEYS = ("time", "ts", "timestamp", "@timestamp", "@t", "asctime", "date", "__REALTIME_TIMESTAMP")
_META = frozenset(
    [
        "stream",
        "level",
        "levelname",
        "severity",
        "kubernetes",
        "container_name",
        "pod",
        "pod_name",
        "host",
        "hostname",
        "source",
        "labels",
        "fields",
        "resource",
        "tag",
        "_PID",
        *_TIME_KEYS,
    ]
)
_CUT_JSON = re.compile(r'\{"(?:log|message|msg)": ?"((?:[^"\\]|\\.)+)')


def uncolour(text: str) -> str:
    """Without ANSI and OSC escapes."""
    return _ANSI.sub("", text)


def unpaint(text: str) -> str:
    """Without colour codes whose ESC byte was lost or printed as ``^[``."""
    return _CARET_ANSI.sub("", text)


def returns(text: str) -> list[str]:
    r"""The pieces that ``\r`` parts: of the states of a progress bar only the last."""
    pieces = [piece for piece in text.split("\r") if piece.strip()] or [""]
    return [p for i, p in enumerate(pieces) if i == len(pieces) - 1 or not _PROGRESS.search(p) or _START.search(p)]


def unmark(text: str) -> str:
    """Without HTML entities and with ``[#44](https://…)`` as ``#44``, as pasting into an issue leaves them."""
    if "&" in text:
        text = _ENTITY.sub(lambda m: _ENTITIES[m[1]], text)
    if "](http" in text:
        text = _LINK.sub(r"\1", text)
    return text


def whole_characters(text: str) -> str:
    """Without half characters: JSON can hold one half of a pair (an emoji that was cut), which no UTF-8 text can."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def unescape(text: str, any_escape: bool = False) -> str | None:
    """Text that was cut out of a JSON string: every quote in it is escaped. None when it isn't such text."""
    if '\\"' not in text and not (any_escape and "\\" in text):
        return None
    if _ESCAPED.fullmatch(text) is None:
        return None
    try:
        whole: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return None
    return whole_characters(whole)


def repeated(text: str) -> tuple[str, str] | None:
    """Ray's ``[repeated 4x across cluster]`` at the end: the text before it and the count."""
    m = _REPEATED.search(text)
    return (text[: m.start()].rstrip(), m[1]) if m else None


def glued(text: str) -> list[str] | None:
    """Split where an unmistakable record start begins in mid-line: two writers shared a pipe.

    A stamp without rank counts only right after a non-blank; inside a logged request nothing counts, because people
    paste logs into prompts.
    """
    flat = _COLLAPSED.search(text) is not None
    cuts = [0]
    for m in _START.finditer(text, 1):
        words = m["words"]
        if any(sign in text[cuts[-1] : m.start()] for sign in _QUOTING):
            break
        if words is None or _RANKED.search(words) or flat or not text[m.start() - 1].isspace():
            cuts.append(m.start())
    if len(cuts) == 1:
        return None
    return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def collapsed(text: str) -> list[str] | None:
    """The lines of a traceback whose newlines became blanks; None when there is none."""
    begin = _COLLAPSED.search(text)
    if begin is None or any(sign in text[: begin.start()] for sign in _QUOTING):
        return None
    out = [text[: begin.end()]]
    frames = list(_FRAME.finditer(text, begin.end()))
    for m, following in zip(frames, [*frames[1:], None], strict=True):
        out.append(f'  File "{m[1]}", line {m[2]}' + (f", in {m[3]}" if m[3] else ""))
        tail = text[m.end() : following.start() if following else len(text)]
        source, *rest = _tail(tail, last=following is None)
        if source:
            out.append("    " + source)
        out.extend(rest)
    return out


def _tail(tail: str, last: bool) -> list[str]:
    """Source line (may be empty), then exception, then what chains the next traceback."""
    first, *chained = _BETWEEN.split(tail)
    raised = _RAISED.search(first) if last or chained else None
    source = first[: raised.start()] if raised else first
    out = [_CARETS.sub("", source).strip()]
    if raised:
        out.append(raised[1].rstrip())
    return out + [part.strip() for part in chained if part.strip()]


def objects(text: str) -> Iterator[tuple[str, Mapping[str, object]]] | None:
    """``(text, object)`` of each JSON object of a line that carries log text, or None when the line is no such line."""
    decoder = json.JSONDecoder(strict=False)
    found: list[tuple[str, Mapping[str, object]]] = []
    at = 0
    while at < len(text):
        if text[at] in " \t,":
            at += 1
            continue
        try:
            one, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            if found:
                found.append((text[at:], {}))
                break
            cut = _CUT_JSON.match(text)
            whole = unescape(cut[1], any_escape=True) or cut[1] if cut else None
            return iter([(whole, {"cut": "1"})]) if whole else None
        inner = _carried(one)
        if inner is None:
            if not found:
                return None
            inner, one = text[at:end], {}
        found.append((inner, one))
        at = end
    return iter(found) if found else None


def _carried(one: object) -> str | None:
    if not isinstance(one, dict):
        return None
    for key in _TEXT_KEYS:
        value = one.get(key)
        if isinstance(value, str) and (key == "log" or not _META.isdisjoint(one)):
            return whole_characters(value)
    return None


def stamp_of(one: Mapping[str, object]) -> float | None:
    """When a JSON log object says it happened."""
    for key in _TIME_KEYS:
        value = one.get(key)
        if isinstance(value, str):
            at = when.iso(value) or (when.epoch(float(value)) if value.isdecimal() and len(value) < 20 else None)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e20:
            at = when.epoch(value)
        else:
            continue
        if at is not None:
            return at
    return None


_WHERE = {"pod": ("pod", "pod_name", "kubernetes_pod_name"), "container": ("container", "container_name"),
          "host": ("host", "hostname", "_HOSTNAME", "node_name"), "unit": ("_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER"),
          "pid": ("_PID",), "stream": ("stream",)}  # fmt: skip


def where_of(one: Mapping[str, object]) -> dict[str, str]:
    """Pod, container, host, unit, pid and stream that a JSON log object names."""
    resource = one.get("resource")
    inner = [one, one.get("kubernetes"), one.get("labels"), one.get("fields"),
             resource.get("labels") if isinstance(resource, dict) else None]  # fmt: skip
    out: dict[str, str] = {}
    for part in inner:
        if isinstance(part, dict):
            for hint, keys in _WHERE.items():
                value = next((part[key] for key in keys if isinstance(part.get(key), str)), None)
                if value:
                    out.setdefault(hint, value)
    return out
