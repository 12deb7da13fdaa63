"""Rank identity: which process a row speaks of, from log prefix, process title, file name, pid, or elimination."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Rank, Row, Sample, Setting, Stack

NUMBER = re.compile(r"rank (\d+)")
TOKENS = re.compile(r"\b(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d+)")
IN_NAME = re.compile(r"(?<![a-z])(dp|pp|attn_cp|tp|ep)[ _-]?(\d+)(?!\d)", re.IGNORECASE)
NUMBER_IN_NAME = re.compile(r"(?<![a-z])rank[ _-]?(\d+)(?!\d)", re.IGNORECASE)
HOME = ("host", "pid", "dp", "pp", "cp", "tp", "number", "pod")
COLUMNS = {"DP": "dp", "PP": "pp", "ATTN_CP": "cp", "MOE_DP": "moe_dp", "TP": "tp", "EP": "ep"}


class Identity:
    """Resolves the ranks of all rows of an incident. Rows are changed in place.

    ``overrides`` maps a citation path (or its file name) to a label, as said with ``--rank FILE='PP1 TP0'``.
    """

    def __init__(self, rows_by_artifact: Mapping[str, list[Row]], overrides: Mapping[str, str]) -> None:
        self._rows = rows_by_artifact
        self._overrides = overrides
        self._sizes = _sizes(rows_by_artifact)
        self._labels = self._seen_labels()

    def resolve(self) -> list[Rank]:
        """Give every row the best label there is; returns the ranks. Readers' notes of where a rank ran (``Rank`` rows)
        are taken out of the rows and into it."""
        for artifact, rows in self._rows.items():
            forced = self._override(artifact)
            if forced is not None:
                for row in rows:
                    _set(row, forced)
                continue
            own = _labels(rows)
            if len(own) == 1:
                self._complete(rows, next(iter(own)))
            elif not own:
                named = self._from_name(artifact)
                if named is not None and any(isinstance(r, Stack) or _rank(r) is None for r in rows):
                    self._complete(rows, named, stacks_only=not _has_logs(rows))
        self._shorten()
        self._labels = self._seen_labels()
        self._numbers()
        self._pids()
        self._eliminate()
        return self._ranks()

    # -- steps --------------------------------------------------------------------------------------------------

    def _override(self, artifact: str) -> str | None:
        for key, label in self._overrides.items():
            if artifact == key or artifact.replace("!", "/").endswith("/" + key):
                return label
        return None

    def _complete(self, rows: list[Row], label: str, *, stacks_only: bool = False) -> None:
        """A file of one rank: what has no name in it, or one number only, is that rank; not what another pid did."""
        pids = {pid for r in rows if _rank(r) == label and (pid := getattr(r, "pid", None))}
        numbers = {known for r in rows if (known := _rank(r)) and NUMBER.fullmatch(known)}
        for row in rows:
            known = _rank(row)
            if (known in numbers and len(numbers) > 1) or _of_the_job(row):
                continue
            if stacks_only and not isinstance(row, Stack):
                continue
            if isinstance(row, Stack) and row.pid and pids and row.pid not in pids:
                continue
            if (known is None or NUMBER.fullmatch(known)) and not isinstance(row, Setting):
                _set(row, label)

    def _from_name(self, artifact: str) -> str | None:
        name = artifact.rsplit("/", 1)[-1]
        tokens = {k.upper(): int(n) for k, n in IN_NAME.findall(name)}
        if tokens:
            return " ".join(f"{k}{tokens[k]}" for k in COLUMNS if k in tokens)
        number = NUMBER_IN_NAME.search(name)
        return f"rank {int(number[1])}" if number else None

    def _shorten(self) -> None:
        """Metrics name every size (``PP0 TP0``), logs only those above 1 (``PP0``): one process, the log's name."""
        labels = self._seen_labels()
        tokens = {label: dict(TOKENS.findall(label)) for label in labels}
        same = {
            long: short
            for long in labels
            for short in labels
            if len(tokens[short]) < len(tokens[long])
            and all(tokens[long].get(k) == v for k, v in tokens[short].items())
            and all(v == "0" for k, v in tokens[long].items() if k not in tokens[short])
        }
        for rows in self._rows.values():
            for row in rows:
                known = _rank(row)
                if known in same:
                    _set(row, same[known])

    def _numbers(self) -> None:
        """``rank 3`` becomes a label where the topology says which one it is."""
        pp, tp = self._sizes
        if pp is None and not any("PP" in label for label in self._labels):
            pp = 1
        told = self._told_numbers()
        if not told and (not pp or not tp):
            return
        for rows in self._rows.values():
            for row in rows:
                known = _rank(row)
                m = NUMBER.fullmatch(known or "")
                if m is None:
                    continue
                number = int(m[1])
                label = told.get(number)
                if label is None and pp and tp:
                    label = self._at(number // tp % pp, number % tp)
                if label is not None:
                    _set(row, label)

    def _told_numbers(self) -> dict[int, str]:
        """The label of each global rank whose process said both (a manifest, a ring); not where two of them differ."""
        told: dict[int, set[str]] = defaultdict(set)
        for rows in self._rows.values():
            for row in rows:
                if isinstance(row, Rank) and row.number is not None and TOKENS.search(row.id):
                    told[row.number].add(row.id)
        return {number: next(iter(labels)) for number, labels in told.items() if len(labels) == 1}

    def _at(self, pp: int, tp: int) -> str | None:
        fitting = [
            label
            for label in self._labels
            if (t := dict(TOKENS.findall(label))) and int(t.get("PP", 0)) == pp and int(t.get("TP", 0)) == tp
        ]
        if len(fitting) == 1:
            return fitting[0]
        size_pp, size_tp = self._sizes
        if fitting or not self._labels or any("DP" in label or "CP" in label for label in self._labels):
            return None
        parts = [f"PP{pp}"] * ((size_pp or 1) > 1) + [f"TP{tp}"] * ((size_tp or 1) > 1)
        return " ".join(parts) or None

    def _pids(self) -> None:
        """A stack with only a pid is the rank that the log or another dump gives to this pid."""
        known: dict[int, str] = {}
        for rows in self._rows.values():
            for row in rows:
                pid = getattr(row, "pid", None)
                if pid is None and getattr(row, "kind", "") in {"pyspy_dump", "pyspy_failed", "subprocess_crashed"}:
                    text = row.fields.get("pid")  # type: ignore[union-attr]
                    pid = int(text) if text else None
                label = _rank(row)
                if pid and label and not NUMBER.fullmatch(label):
                    known.setdefault(pid, label)
        for rows in self._rows.values():
            for row in rows:
                pid = getattr(row, "pid", None)
                if pid in known and _rank(row) is None:
                    _set(row, known[pid])

    def _eliminate(self) -> None:
        """One process without a name and one rank without a dump: they are the same."""
        nameless: dict[int, list[Stack]] = defaultdict(list)
        for rows in self._rows.values():
            for row in rows:
                if isinstance(row, Stack) and row.rank is None and row.pid is not None and row.source == "pyspy":
                    nameless[row.pid].append(row)
        with_dump = {
            r.rank
            for rows in self._rows.values()
            for r in rows
            if isinstance(r, Stack) and r.source == "pyspy" and r.rank
        }
        left = [label for label in self._labels if label not in with_dump]
        if len(nameless) == 1 and len(left) == 1 and with_dump:
            for stack in next(iter(nameless.values())):
                stack.rank = left[0]

    # -- results ------------------------------------------------------------------------------------------------

    def _seen_labels(self) -> list[str]:
        labels = {label for rows in self._rows.values() for label in _labels(rows)}
        return sorted(labels, key=_order)

    def _ranks(self) -> list[Rank]:
        out: dict[str, Rank] = {}
        homes: list[Rank] = []
        for artifact, rows in self._rows.items():
            homes += [row for row in rows if isinstance(row, Rank)]
            rows[:] = [row for row in rows if not isinstance(row, Rank)]
            for row in rows:
                label = _rank(row)
                if label and (label not in out or not (out[label].pid or not getattr(row, "pid", None))):
                    out[label] = _new_rank(label, artifact, getattr(row, "pid", None))
        for home in homes:
            if _is_process(home) and home.id not in out:
                out[home.id] = _new_rank(home.id, home.artifact, home.pid)
            if home.id in out:
                for name in HOME:
                    if (value := getattr(home, name)) is not None:
                        setattr(out[home.id], name, value)
        return [out[k] for k in sorted(out, key=_order)]


def _of_the_job(row: Row) -> bool:
    """Whether a row comes from a report on all processes: whose it is its pid tells, not the file that holds it."""
    if isinstance(row, GroupStatus):
        return row.source == "ras"
    if isinstance(row, Sample):
        return row.name.startswith("gpu_")
    return isinstance(row, LogRecord) and row.kind.startswith(("ras_", "kernel_"))  # the host's, not a rank's


def _new_rank(label: str, artifact: str | None, pid: int | None) -> Rank:
    tokens: dict[str, Any] = {COLUMNS[k]: int(n) for k, n in TOKENS.findall(label)}
    number = NUMBER.fullmatch(label)
    return Rank(label, pid=pid, number=int(number[1]) if number else None, artifact=artifact, **tokens)


def _sizes(rows_by_artifact: Mapping[str, list[Row]]) -> tuple[int | None, int | None]:
    found: dict[str, Counter[int]] = {"pp_size": Counter(), "tp_size": Counter()}
    for rows in rows_by_artifact.values():
        for row in rows:
            if isinstance(row, Setting) and row.key in found and row.value.isdigit():
                found[row.key][int(row.value)] += 1
    sizes = [c.most_common(1)[0][0] if c else None for c in (found["pp_size"], found["tp_size"])]
    return sizes[0], sizes[1]


def _rank(row: Row) -> str | None:
    """The label of a row. A Rank row that names a process (of a ring, a manifest, a dump) is one of its rows, too."""
    value = (row.id if _is_process(row) else None) if isinstance(row, Rank) else getattr(row, "rank", None)
    return value if isinstance(value, str) else None


def _is_process(home: Rank) -> bool:
    return home.pid is not None or NUMBER.fullmatch(home.id) is not None


def _set(row: Row, label: str) -> None:
    if isinstance(row, Rank):
        if _is_process(row):
            row.id = label
    elif hasattr(row, "rank"):
        row.rank = label


def _labels(rows: Iterable[Row]) -> set[str]:
    return {label for r in rows if (label := _rank(r)) and TOKENS.search(label)}


def _has_logs(rows: Iterable[Row]) -> bool:
    return any(type(r).table in {"log", "batch", "exception"} for r in rows)


def _order(label: str) -> tuple[Any, ...]:
    tokens = dict(TOKENS.findall(label))
    return (*(int(tokens.get(k, -1)) for k in ("PP", "DP", "TP", "ATTN_CP", "EP")), label)
