"""Configuration in small texts: notes, shell scripts, Dockerfiles, manifests, ``pip list``, ``/server_info``.

Yields Setting rows: ``image`` and ``sglang_version`` (with other package versions), environment variables under their
own name, and launch options under SGLang's ServerArgs attribute names. ``command_cut`` says that a command visibly
goes on. Secrets are masked at once, in values and in quotes; a value that was masked is also looked for in all quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hicache_doctor.artifacts.command_line import commands, options
from hicache_doctor.artifacts.option_names import attribute, is_known
from hicache_doctor.artifacts.secret_text import MASK, is_secret, masked
from hicache_doctor.artifacts.secrets import Scrubber
from hicache_doctor.artifacts.server_args import looks_like_server_args, parse_server_args
from hicache_doctor.artifacts.server_info import looks_like_server_info, read_answers
from hicache_doctor.evidence.rows import Row, Setting

__all__ = ["looks_like_launch", "parse", "parse_server_args"]

_VERSION = r"\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev|a|b)\d+)*(?:\+[\w.]+)?"
_IMAGE = re.compile(
    rf"(?<![\w/:.-])((?:[\w.-]+(?::\d+)?/)+[\w.-]*sglang[\w.-]*(?:/[\w.-]+)*):(v?(?:({_VERSION})|[a-z])[\w.-]*)"
)
_SGLANG = re.compile(
    r"(?<![\w/.-])(?<![\x00-\x7f]:)sglang(?:\[[\w,-]+\])?"
    r"(?P<how>\s*===?\s*|\s*[:\uff1a=@]\s*v?|\s*(?:version|release|版本号?)\s*[:\uff1a=]?\s*v?|\s+:?\s*v?|-v?)"
    rf"(?P<version>{_VERSION})(?![\w*])",
    re.I | re.A,  # prose in any script stands right beside words, options and numbers
)
_FLAG = re.compile(
    r"(?<![\w-])(?P<dashes>--)(?:sglang-)?(?P<option>[a-z][a-z0-9-]+)(?:[= ]+(?P<value>(?!-)[\w./:{}\"'+-]+))?",
    re.A,
)
# Options that no other program has: without one of them, `--tp 8` may be anybody's.
_DISTINCTIVE = re.compile(
    r"--sglang-|--pp-size|--pipeline-parallel-size|--hicache-|hierarchical-cache|--disaggregation-mode"
)
_PLAIN_VERSION = re.compile(
    r"(?:\bversion|版本号?)[\"']?\s*[:\uff1a= ]\s*[\"']?v?(0\.[45]\.\d+(?:\.post\d+)?)(?![\w.]*\w)", re.I | re.A
)
# A note that only says "tag v0.5.19-cu129": SGLang's own tags look like no other project's.
_TAG = re.compile(r"(?<![\w/.:@-])v(0\.[45]\.\d+(?:\.post\d+)?)(?:-(?:cu|rocm)\w+)?(?![\w.]*\w)", re.A)
_PACKAGES = {
    "pytorch": "torch_version", "torch": "torch_version", "sgl_kernel": "sgl_kernel_version",
    "sgl-kernel": "sgl_kernel_version", "sglang-kernel": "sgl_kernel_version", "python": "python_version",
    "flashinfer_python": "flashinfer_version", "flashinfer-python": "flashinfer_version",
    "mooncake-transfer-engine": "mooncake_version", "nvidia-nccl-cu12": "nccl_version",
    "nvidia-nccl-cu13": "nccl_version",
}  # fmt: skip
_PACKAGE = re.compile(rf"^\s*(?:[-*]\s+)?([A-Za-z][\w-]*)(?:\s*==\s*|:\s+|\s+)({_VERSION})(?=\s|$|\s*\()")
_PIP_NAME = re.compile(r"^Name:\s*(\S+)\s*$")
_PIP_VERSION = re.compile(rf"^Version:\s*({_VERSION})\s*$")
_ENV_NAME = r"[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]"
_ENV = re.compile(
    r"^\s*(?:[-*]\s+)?(?:(?:export|ENV|set|setenv|env:|environment:)\s+)?"
    rf"[\"']?(?P<name>{_ENV_NAME})[\"']?(?P<sep>=|\s*:\s+|\s+)"
    r"(?P<value>.*?)\s*$"
)
_INLINE_ENV = re.compile(
    rf"(?<![\w$-])(?:(?:-e|--env)[ =])?[\"']?(?P<name>{_ENV_NAME})[\"']?(?:=|:\s?(?=[\"'\d]))"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]*)"
)
_OURS = re.compile(r"(?:SGLANG|SGL|NCCL|TORCH|PYTORCH|MOONCAKE|MC|CUDA|GLOO|HICACHE|HF|NVSHMEM|UCX|LMCACHE)_")
_NAME = re.compile(
    r"^\s*-?\s*[{\s]*[\"']?name[\"']?\s*:\s*[\"']?([A-Za-z_][\w.]*)[\"']?\s*"
    r"(?:,\s*[\"']?value[\"']?\s*:\s*(.*?)\s*}?,?)?\s*$"
)
_NAME_VALUE = re.compile(r"^\s*[\"']?value[\"']?\s*:(.*)$")
_YAML = re.compile(r"^\s*[\"']?([a-z][a-z0-9_-]{2,60})[\"']?\s*:\s*([^\s#{\[|>&].*)$")
# Long runs of blanks (a terminal's width) would only cost time.
_BLANKS = re.compile(r"\s{41,}")
_CLIP = 300


def looks_like_launch(text: str) -> bool:
    """True when something in the text is a setting that this reader knows."""
    return bool(parse(list(enumerate(text.split("\n")[:400], 1)), ""))


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Row]:
    """The settings by line (with the gauges that an answer of the server holds, first); the same key may come several
    times, from several sources. Never raises."""
    answers: list[Row] = []
    if looks_like_server_info("\n".join(t for _, t in lines)):
        answers, taken = read_answers(lines, artifact)
        lines = [(n, t) for n, t in lines if n not in taken]
    lines = [(n, _BLANKS.sub(" " * 40, t.rstrip())) for n, t in lines if len(t) < 100_000]
    return [*answers, *_said(lines, artifact)]


def _said(lines: Sequence[tuple[int, str]], artifact: str) -> list[Setting]:
    found = list(_text(lines))
    if not found:
        return []
    secrets: set[str] = set()
    used = {number for number, *_ in found}
    scrubber = Scrubber()
    by_line = {n: line.strip() for n, t in lines if (line := scrubber.line(t)) and n in used}
    rows: list[Setting] = []
    for number, key, value, source in found:
        if is_secret(key) and masked(key, value) == MASK:
            secrets.add(value)
        rows.append(Setting(key, masked(key, value), source, artifact, number, None, by_line.get(number)))
    for row in rows:
        row.value = _without(row.value, secrets)
        row.quote = _clipped(_without(row.quote or "", secrets), row.key)
    return _distinct(rows)


def _clipped(quote: str, key: str) -> str:
    """Of a long line the part around the key."""
    if len(quote) <= _CLIP:
        return quote
    begin = max(0, max(quote.find(key), quote.find(key.replace("_", "-"))) - 20)
    return quote[begin : begin + _CLIP]


def _distinct(rows: list[Setting]) -> list[Setting]:
    """The rows by line, each fact of a line and source once."""
    once = {(r.key, r.value, r.source, r.line): r for r in rows}
    return sorted(once.values(), key=lambda r: r.line or 0)


def _without(text: str, secrets: set[str]) -> str:
    """The text without values that were secret elsewhere (a value on the line after its option, say)."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
        elif secret in text.split():
            text = re.sub(rf"(?<!\S){re.escape(secret)}(?!\S)", MASK, text)
    return text


_Found = tuple[int, str, str, str]


def _text(lines: Sequence[tuple[int, str]]) -> Iterator[_Found]:
    taken: set[int] = set()
    for found in _commands(lines):
        taken.add(found[0])
        yield found
    name: str | None = None
    package: str | None = None
    for number, text in lines:
        if looks_like_server_args(text):
            values, cut = parse_server_args(text)
            yield from ((number, k, v, "server_args") for k, v in values.items())
            if cut:
                yield number, "server_args_cut", "True", "server_args"
            continue
        yield from _versions(number, text)
        if number not in taken:
            yield from _flags(number, text)
        if named := _PIP_NAME.match(text):
            package = named.group(1).lower()
        elif package in ("sglang", *_PACKAGES) and (version := _PIP_VERSION.match(text)):
            yield number, _PACKAGES.get(package, "sglang_version"), version.group(1), "pip"
        if len(text) > 5000:
            continue
        if "name" in text and (pair := _NAME.match(text)):
            name = pair.group(1)
            if pair.group(2) is not None and re.fullmatch(_ENV_NAME, name):
                yield number, name, _plain(pair.group(2)), "environment"
            continue
        if name is not None and (value := _NAME_VALUE.match(text)):
            if re.fullmatch(_ENV_NAME, name) or is_secret(name):
                yield number, name, _plain(value.group(1).strip().rstrip(",")), "environment"
            name = None
            continue
        yield from _environment(number, text)
        if (item := _YAML.match(text)) and is_known(item.group(1)) and "--" not in item.group(2):
            yield number, attribute(item.group(1)), _boolean(_plain(item.group(2).strip().rstrip(","))), "YAML"


def _commands(lines: Sequence[tuple[int, str]]) -> Iterator[_Found]:
    for command in commands(lines):
        for number, key, value in options(command):
            yield number, key, value, "command line"
        if command.cut and command.line is not None:
            yield command.line, "command_cut", "True", "command line"


def _flags(number: int, text: str) -> Iterator[_Found]:
    """SGLang's options inside prose, or handed through by a job framework (``--sglang-tp-size 2``): what is there is
    known, what is not there means nothing."""
    if _DISTINCTIVE.search(text) is None:
        return
    for m in _FLAG.finditer(text):
        option = m.group("option")
        if is_known(option):
            value = m.group("value")
            yield (
                number,
                attribute(option),
                _boolean(_plain(value.rstrip(".,;:)"))) if value else "True",
                "flags in text",
            )


def _versions(number: int, text: str) -> Iterator[_Found]:
    if len(text) > 5000:
        return
    named = "sglang" in text.lower()
    images = list(_IMAGE.finditer(text)) if named else []
    stated = list(_SGLANG.finditer(text)) if named else []
    for m in images:
        yield number, "image", f"{m.group(1)}:{m.group(2).rstrip('.')}", "image tag"
        if m.group(3):
            yield number, "sglang_version", m.group(3), "image tag"
    for m in stated:
        source = "pip" if "==" in m.group("how") or m.group("how").startswith("-") else "version list"
        yield number, "sglang_version", m.group("version"), source
    if not stated and not images:
        said = _TAG.search(text) or (_PLAIN_VERSION.search(text) if named else None)
        if said is not None:
            yield number, "sglang_version", said.group(1), "note"
    if (package := _PACKAGE.match(text)) and (key := _PACKAGES.get(package.group(1).lower())):
        yield number, key, package.group(2), "version list"


def _environment(number: int, text: str) -> Iterator[_Found]:
    """Assignments: a line of its own may set any variable, elsewhere only known families (and -e X=Y) count."""
    if len(text) > 5000:
        return
    own = _ENV.match(text)
    docker = text.lstrip().startswith(("ENV ", "setenv "))
    if (
        own is not None
        and (own.group("sep").strip() or docker)
        and not _more_follows(own.group("name"), own.group("value"))
    ):
        value = re.sub(r"\s+#.*$", "", own.group("value"))
        yield number, own.group("name"), _plain(value), "environment"
        return
    for m in _INLINE_ENV.finditer(text):
        given = text[: m.start("name")].rstrip("\"' =").endswith(("-e", "--env"))
        given = given or (own is not None and m.start("name") == own.start("name"))
        if _OURS.match(m.group("name")) or given or is_secret(m.group("name")):
            yield number, m.group("name"), _plain(m.group("value").rstrip(".,)}")), "environment"


def _more_follows(name: str, value: str) -> bool:
    """True when the line holds more than one assignment: others, a command, or prose."""
    if _INLINE_ENV.match(value) or re.search(rf"\s{_ENV_NAME}=|\s(?:python3?|sglang)\s", value):
        return True
    return _OURS.match(name) is not None and re.search(r"[.,]\s", value) is not None


def _plain(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _boolean(text: str) -> str:
    return {"true": "True", "false": "False", "null": "None", "yes": "True", "no": "False"}.get(text.lower(), text)
