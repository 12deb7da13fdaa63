"""Launch commands of SGLang in text: shell (with continuations), YAML and JSON lists, Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hicache_doctor.artifacts.option_names import attribute, is_known

_LAUNCH = re.compile(
    r"sglang[./]launch_server|\bsglang\s+serve\b|launch_server\.py|sglang[./]srt[./]server\b|\bsglang\.serve\b"
)
_OTHER = re.compile(r"sglang[./](?:bench\w*|test|check_env|profiler)|sglang_router|sglang\.srt\.disaggregation\.\w*lb")
_ARGS = re.compile(
    r"^\s*(?:[-*]\s+|\{\s*)?[\"']?(?P<key>args|command|cmd|entrypoint|\w*ARGS|extra_args)[\"']?\s*[:=]\s*(?P<rest>.*)$",
    re.I,
)
_DOCKER = re.compile(r"^\s*(?:CMD|ENTRYPOINT|RUN)\s+(?P<rest>.*)$")
_ITEM = re.compile(r"^\s*-\s+(?P<item>\S.*?)\s*$|^\s*[\"'](?P<quoted>(?:[^\"'\\]|\\.)*)[\"']\s*,?\s*$")
_TOKEN = re.compile(
    r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|\$\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)|\$\([^()]*\)|\\.|[^\s\"'\\;|&]|[;|&]+|\s+"
)
# A command in Markdown's inline code; `hostname` within a command is the shell's own.
_INLINE_CODE = re.compile(r"`([^`\n]*(?:launch_server|sglang serve|(?<![^\s`])--[a-z])[^`\n]*)`")
# A line without any of these, and without a line before it that goes on, is no command: most lines of a file.
_SIGNS = ("sglang", "launch_server", "--")
_NEGATIVE = re.compile(r"-\d+(?:\.\d+)?")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?", re.S)
_CUT_FLAG = re.compile(r"--?(?:[A-Za-z][\w-]*-)?")


@dataclass(slots=True)
class Command:
    """One launch command: its words with the line that each stands on; ``cut`` when it visibly goes on."""

    words: list[tuple[int, str]] = field(default_factory=list)
    cut: bool = False

    @property
    def line(self) -> int | None:
        """The line of the command's last word, where a cut shows."""
        return self.words[-1][0] if self.words else None


def commands(lines: Sequence[tuple[int, str]]) -> list[Command]:
    """The launch commands in ``lines`` (words after the program), in order. Never raises."""
    found: list[Command] = []
    for words, cut in _candidates(lines):
        for part in _parts(words):
            after = _after_program(part)
            if after is not None:
                ends = cut and part[-1:] == words[-1:]
                found.append(Command(after, ends or _ends_cut(after)))
    return found


def options(command: Command) -> Iterator[tuple[int, str, str]]:
    """(line, attribute name, value) of each option; a flag without a value is ``True``."""
    key, line, values = "", 0, list[str]()
    for number, word in command.words:
        if _FLAG.fullmatch(word) and not _NEGATIVE.fullmatch(word):
            if key:
                yield line, key, " ".join(values) or "True"
            name, equals, value = word.partition("=")
            key, line, values = attribute(name), number, [value] if equals else []
        elif key and word not in ("-", "--"):
            values.append(word)
    last = command.words[-1][1] if command.words else ""
    if key and not (command.cut and last.endswith("-") and attribute(last) == key):
        yield line, key, " ".join(values) or "True"


def _candidates(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[list[tuple[int, str]], bool]]:
    """Logical lines as words, and whether the last physical line asked for more; lists below a key are one line."""
    i = 0
    while i < len(lines):
        number, text = lines[i]
        m = _ARGS.match(text) or _DOCKER.match(text)
        rest = m.group("rest").strip() if m else ""
        if m is not None and rest in ("", "[", "|", ">", "|-", ">-"):
            words, i = _list(lines, i + 1, scalar=rest[:1] in ("|", ">") and rest != "")
            yield words, False
            continue
        if m is not None and rest.startswith("["):
            yield [(number, a or b) for a, b in re.findall(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'", rest)], False
            i += 1
            continue
        if m is None and not text.rstrip().endswith("\\") and not any(sign in text for sign in _SIGNS):
            i += 1
            continue
        # `args: --x` and `- --x` are read from their value on.
        text = re.sub(r"^\s*-\s+(?=--)", "", rest.strip("\"'") if m is not None and "--" in rest else text)
        words = []
        going = True
        while going:
            going = text.rstrip().endswith("\\")
            words += [(number, w) for w in _words(text.rstrip()[:-1] if going else text)]
            if going:
                i += 1
                if i >= len(lines):
                    break
                number, text = lines[i]
        yield words, going
        i += 1


def _list(lines: Sequence[tuple[int, str]], i: int, scalar: bool) -> tuple[list[tuple[int, str]], int]:
    """The items of a YAML or JSON list (or of a block scalar) from line index ``i``, and the index after them."""
    words: list[tuple[int, str]] = []
    indent = -1
    while i < len(lines):
        number, text = lines[i]
        here = len(text) - len(text.lstrip())
        if text.strip() and (m := _ITEM.match(text)) is not None and not scalar:
            item = m.group("quoted") if m.group("item") is None else m.group("item")
            item = re.sub(r"^([\"'])(.*)\1$", r"\2", item)
            words += (
                [(number, w) for w in _words(item)] if item.startswith("--") or "sglang" in item else [(number, item)]
            )
        elif scalar and text.strip() and here > 0 and (indent < 0 or here >= indent):
            indent = here if indent < 0 else indent
            words += [(number, w) for w in _words(text.rstrip().rstrip("\\"))]
        elif text.strip():
            break
        i += 1
    return words, i


def _words(text: str) -> list[str]:
    """Shell words; ``;``, ``&&`` and ``|`` are words of their own; comments are dropped."""
    out: list[str] = []
    word: str | None = None
    for m in _TOKEN.finditer(_INLINE_CODE.sub(r" ; \1 ; ", text[:50_000])):
        piece = m.group()
        if piece.isspace():
            out += [] if word is None else [word]
            word = None
        elif piece[0] in ";|&":
            out += [piece] if word is None else [word, piece]
            word = None
        elif piece == "#" and word is None:
            break
        else:
            plain = m.group(1) if m.group(1) is not None else m.group(2) if m.group(2) is not None else piece
            word = (word or "") + (plain[1:] if plain is piece and piece[0] == "\\" else plain)
    return out if word is None else [*out, word]


def _parts(words: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The commands between ``;``, ``&&`` and ``|``."""
    part: list[tuple[int, str]] = []
    for number, word in words:
        if word and not word.strip(";|&"):
            yield part
            part = []
        else:
            part.append((number, word))
    yield part


def _after_program(words: list[tuple[int, str]]) -> list[tuple[int, str]] | None:
    """The words after the launch program; all of them when they are options of its only; None for another program."""
    for i, (_, word) in enumerate(words):
        pair = f"{word} {words[i + 1][1]}" if i + 1 < len(words) else word
        if _OTHER.search(word):
            return None
        if _LAUNCH.search(word):
            return _split_inner(words, i)
        if re.fullmatch(r"(?:\S*/)?sglang serve", pair):
            return words[i + 2 :]
    first = next((w for _, w in words if w.startswith("-")), "")
    if words and first == words[0][1] and sum(w.startswith("--") and is_known(w.split("=")[0]) for _, w in words):
        return words
    return None


def _split_inner(words: list[tuple[int, str]], i: int) -> list[tuple[int, str]]:
    """``bash -c "python -m sglang.launch_server --tp 8"``: one word holds the whole command."""
    number, word = words[i]
    if " " not in word:
        return words[i + 1 :]
    inner = [(number, w) for w in _words(word)]
    nested = next((a for p in _parts(inner) if (a := _after_program(p)) is not None and len(p) < 1_000), None)
    return [*(nested or []), *words[i + 1 :]]


def _ends_cut(words: list[tuple[int, str]]) -> bool:
    return bool(words) and words[-1][1].startswith("-") and _CUT_FLAG.fullmatch(words[-1][1]) is not None
