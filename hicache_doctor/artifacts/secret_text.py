"""Secrets in configuration text: they are masked (``***``) before a row or a quote is made of it."""

from __future__ import annotations

import re

MASK = "***"

_ALWAYS = re.compile(
    r"passw(?:or)?d|passphrase|(?<!no)secret|api_?key|access_?key|private_?key|admin_?key|account_?key|auth_?key|"
    r"credential|authorization|bearer|(?:access|auth|api|hf|hub|refresh|session|bot|github|gitlab)_?tokens?$",
    re.I,
)
_TOKEN = re.compile(r"(?:^|_)token(?:_|$)")
# SGLang's own words with "token" in them, which are counts, ids, maps and shares.
_PLAIN_TOKEN = re.compile(
    r"(?:per|new|cached|full|pending|num|max|min|draft|special|used|total|eos|bos|pad|stop|mask)_token|"
    r"token_(?:usage|map|distribution|threshold|ratio|count|counts|ids?|level|size|len|length|capacity|budget|step|pool)"
)
_EMPTY = frozenset({"", "none", "null", "true", "false", "~", "***", '""', "''"})
# More nested pairs than this in one value are not looked at one by one.
_DEEPEST = 60

_URL = re.compile(r"(\w[\w+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]+@")
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+(?!token\b)[\w.~+/=-]{6,}", re.I)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{12,}|glpat-[\w-]{16,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_KEY = r"[A-Za-z_][\w.-]{0,80}"
_VALUE = r"\\*\"(?:[^\"\\]|\\(?!\"))*\\*\"|\\*'(?:[^'\\]|\\(?!'))*\\*'|[^\s,;)}\]\"']+|\\*[\"'].*$"
_PAIR = re.compile(rf"(?<![\w.])(?P<key>{_KEY})(?P<sep>\\*[\"']?\s*[=:]\s*)(?P<value>{_VALUE})")
_OPTION = re.compile(rf"--(?P<key>{_KEY})(?P<sep>[\"']?\s*,\s*|[\"']?\s+)(?P<value>{_VALUE})")
_LINE = re.compile(
    rf"^(?P<head>\s*(?:[-*]\s+)?(?:(?:export|ENV|set|setenv|env:?)\s+)?)(?P<key>{_KEY})(?P<sep>\s*[=:]\s*|\s+)"
    r"(?P<value>[^\"'\s].*)$"
)


def is_secret(key: str) -> bool:
    """True when a key's value must not be shown: passwords, tokens, API and access keys, credentials."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip().lstrip("-")).lower().replace("-", "_").replace(".", "_")
    if _ALWAYS.search(name):
        return True
    return _TOKEN.search(name) is not None and _PLAIN_TOKEN.search(name) is None


def masked(key: str, value: str) -> str:
    """The value as it may be shown: ``***`` for a secret key (unless it is empty or None), else :func:`mask` of it."""
    if is_secret(key):
        return value if value.strip().lower() in _EMPTY else MASK
    return mask(value)


def mask(text: str) -> str:
    """The text with every recognised secret replaced: pairs, options, URL credentials, known token shapes."""
    text = _URL.sub(rf"\1{MASK}@", text)
    m = _LINE.match(text)
    whole = m is not None and is_secret(m.group("key")) and (m.group("sep").strip() or m.group("key").isupper())
    # The rest of the line belongs to the value, unless a list of arguments goes on after an empty one.
    if m is not None and whole and m.group("value").split(",")[0].strip().lower() not in _EMPTY:
        return text[: m.start("value")] + MASK
    text = _SHAPES.sub(MASK, _SCHEME.sub(rf"\1 {MASK}", text))
    return _OPTION.sub(_masked_pair, _PAIR.sub(_masked_pair, text))


def _masked_pair(m: re.Match[str]) -> str:
    head, value = m.group()[: m.start("value") - m.start()], m.group("value")
    marks = re.match(r"\\*[\"']?", value)
    quote = marks.group() if marks else ""
    if not is_secret(m.group("key")):
        # A pair may stand inside another's value: extra='{"access_key": "…"}', --env=HF_TOKEN=….
        if value.count("=") + value.count(":") > _DEEPEST:
            return head + (MASK if _ALWAYS.search(value) or _TOKEN.search(value.lower()) else value)
        return head + value[: len(quote)] + _PAIR.sub(_masked_pair, value[len(quote) :])
    return m.group() if value.strip("\\\"'").lower() in _EMPTY else f"{head}{quote}{MASK}{quote}"
