"""Where the value of a key ends, and what to put in its place."""

from __future__ import annotations

import re

from hicache_doctor.artifacts import secret_shapes as shapes

DROPPED = "***"
_LIST = '["***"]'
_LOOK_BACK = 80

_OPENING = re.compile(r"""[bruf]{0,2}(\\*)(["'])""", re.IGNORECASE)
_CALL = re.compile(r"[A-Za-z_.]{1,40}\(\s{0,4}")
_IDS = re.compile(r"""(?:[\w.]{1,40}\(\s{0,8}(?:\\*["']\w\\*["']\s{0,4},\s{0,4})?)?(?=[\[(]\s{0,8}[\[(]?\s{0,8}-?\d)""")
_STEP = {"'": re.compile(r"""(\\*)'|\n"""), '"': re.compile(r"""(\\*)"|\n""")}
_BRACKETS = re.compile(r"""[\[\](){}]|(\\*)(["'])""")
_COUNTED = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?")
_ENCLOSED = re.compile(r"""(\\*)(["'])(?:(?:export|set|ENV)\s{1,4})?(?:-{0,2}[\w.-]{0,60})$""")
_LINE_START = re.compile(r"(?:^|\n)[\s-]{0,40}(?:(?:export|set|ENV|declare -x)\s{1,4})?[\w.-]{0,60}$")
_ENVIRONMENT = re.compile(r"(?:^|[^A-Za-z0-9_])[A-Z0-9_]{0,60}$")
_SCHEME = re.compile(r"""(?:Bearer|Basic|Token|ApiKey|Negotiate|Digest)\s{1,4}(?=\S)""", re.IGNORECASE)
_WORD = re.compile(r"""[^\s,;&"'()\[\]{}|<>\\]+""")
_NON_SPACE = re.compile(r"\S+")
_TO_END = re.compile(r"[^\r\n]*")
_CODE = re.compile(r"[A-Za-z_][\w.]*(?:\[[\w.]*\]|\([\w.]*\))*\s*(?:[)\]}:,]*\s*(?:\n|$)|,\s*(?:\w+\s*=|\*))")
_TYPE = re.compile(r"(?:str|list|List|Optional|Union|Any|dict|Dict|int|bytes|bool|torch|Sequence|Iterable)\b")
_OBJECT = re.compile(r"<(?:[a-z_]\w*\.|class |object |function )")

Drop = tuple[int, int, str]


def replacement(text: str, key: re.Match[str]) -> Drop | None:
    """The stretch of ``text`` to replace after ``key`` and what by, or None if its value may stay."""
    at = key.end()
    if not _separated(text, key) or shapes.NOTHING_SECRET.match(text, at):
        return None
    if key["ids"]:
        return _ids(text, key, at)
    if key["prompt"]:
        return _prompt(text, key, at)
    if key["token"] and _harmless_token(text, key, at):
        return None
    if key["secret"] and key["secret"].lower().startswith(("pwd", "credential")) and text.startswith("/", at):
        return None
    return _quoted(text, at) or _listed(text, at) or _bare(text, key, at)


def _separated(text: str, key: re.Match[str]) -> bool:
    """Whether what stands between key and value makes a pair of them."""
    if key["sign"] or (key["pair"] and (key["secret"] or key["token"])):
        return True
    before = text[max(0, key.start() - _LOOK_BACK) : key.start()]
    option = re.search(r"""(?:^|[\s"'\[,])--[\w-]*$""", before) is not None
    if key["space"]:
        return option and bool(key["secret"] or key["token"]) and not text.startswith("-", key.end())
    if key["listed"]:
        header = key["header"] and re.search(r"""[(\[]\s*b?["']$""", before) is not None
        return bool(header or (option and (key["secret"] or key["token"])))
    return False


def _harmless_token(text: str, key: re.Match[str], at: int) -> bool:
    before = text[max(0, key.start() - _LOOK_BACK) : key.start()]
    if shapes.HARMLESS_TOKEN.search(before) or shapes.NUMBER.match(text, at):
        return True
    opening = _OPENING.match(text, at)
    if opening or before[-1:] in ("_", "-") or key["sign"] is None or "=" in key["sign"]:
        return False
    word = _WORD.match(text, at)
    return word is None or len(word.group()) < 6


def _ids(text: str, key: re.Match[str], at: int) -> Drop | None:
    if shapes.HARMLESS_IDS.search(text[max(0, key.start() - 10) : key.start()]):
        return None
    lead = _IDS.match(text, at)
    if not lead:
        return None
    end, closed = _balanced(text, lead.end())
    count = sum(1 for _ in _COUNTED.finditer(text, lead.end(), end))
    return lead.end(), end, f"[… {'' if closed else 'at least '}{count} ids dropped]"


def _prompt(text: str, key: re.Match[str], at: int) -> Drop | None:
    if found := _quoted(text, at) or _listed(text, at):
        return found
    if not key["prompt"].lower().startswith("prompt") or text[at : at + 1] in ("", "{", "(", "\n", "\r", ",", ")"):
        return None
    harmless = (_CODE, _TYPE, _OBJECT, shapes.NUMBER)
    if any(pattern.match(text, at) for pattern in harmless) and not _plain_word(text, at):
        return None
    return _rest(text, at)


def _plain_word(text: str, at: int) -> bool:
    """One word that is no expression: ``prompt=Hello`` (but ``prompt=prompt,`` and ``prompt=self.text`` are code)."""
    word = _WORD.match(text, at)
    return bool(word and word.group().isalpha() and word.group()[0].isupper() and not _TYPE.match(word.group()))


def _quoted(text: str, at: int) -> Drop | None:
    opening = _OPENING.match(text, at)
    if not opening:
        call = _CALL.match(text, at)
        opening = _OPENING.match(text, call.end()) if call else None
    if not opening:
        return None
    start = opening.end()
    end = _close(text, start, opening[2], len(opening[1]))
    return (start, end, DROPPED) if end > start else None


def _close(text: str, at: int, quote: str, slashes: int) -> int:
    """Where a string that was opened by ``quote`` behind ``slashes`` backslashes ends; at worst with the line.

    One level of escaping deeper, ``n`` backslashes are ``2n + 1``: so the closing quote has as many as the opening one,
    plus whole escaped backslashes, and one with fewer ends an outer string.
    """
    for found in _STEP[quote].finditer(text, at):
        if found[1] is None:
            return found.start()
        n = len(found[1])
        if n < slashes or n % (2 * (slashes + 1)) == slashes:
            return found.end() - 1 - min(n, slashes)
    return len(text)


def _listed(text: str, at: int) -> Drop | None:
    if text[at : at + 1] != "[":
        return None
    end, _ = _balanced(text, at)
    return at, end, _LIST


def _balanced(text: str, at: int) -> tuple[int, bool]:
    """The end of the bracketed value at ``at``, strings skipped, and whether it is there at all."""
    depth = 0
    while found := _BRACKETS.search(text, at):
        at = found.end()
        if found[2]:
            at = _close(text, at, found[2], len(found[1])) + len(found[1]) + 1
        elif found.group() in "[({":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return at, True
    return len(text), False


def _bare(text: str, key: re.Match[str], at: int) -> Drop | None:
    """A value without quotes."""
    if text[at : at + 1] in ("", "\n", "\r", "{", "["):
        return None
    before = text[max(0, key.start() - _LOOK_BACK) : key.start()]
    if enclosed := _ENCLOSED.search(before):
        if key["space"] or key["listed"]:
            return None
        return at, _close(text, at, enclosed[2], len(enclosed[1])), DROPPED
    if key["header"]:
        if "cookie" in key["header"].lower() or not (scheme := _SCHEME.match(text, at)):
            return _rest(text, at)
        word = _WORD.match(text, scheme.end())
        return (scheme.end(), word.end(), DROPPED) if word and not word.group().startswith(DROPPED) else None
    if key["sign"] and _LINE_START.search(before) and (key.start() <= _LOOK_BACK or "\n" in before):
        return _rest(text, at)
    if "=" in (key["sign"] or "") and key.group().isupper() and _ENVIRONMENT.search(before):
        word = _NON_SPACE.match(text, at)
    else:
        word = _WORD.match(text, at)
    return (at, word.end(), DROPPED) if word else None


def _rest(text: str, at: int) -> Drop | None:
    rest = _TO_END.match(text, at)
    if not rest or not (value := rest.group().rstrip()):
        return None
    return at, at + len(value), DROPPED
