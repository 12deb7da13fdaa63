"""SGLang's crash dump (``--crash-dump-folder``): its settings, its launch command, and a log record a request.

Read in a child by :mod:`inert_pickle`. Prompts, token ids and outputs stay there; a clipped prompt comes along only
when the user asked for it (``--keep-prompts``). Kind of the records: ``crash_request``, with ``rid``,
``prompt_tokens``, ``output_tokens``, ``created``, ``ended`` (seconds) and ``state``, ``finished`` or ``unfinished``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hicache_doctor.artifacts import launch
from hicache_doctor.artifacts.limited import Answer, Children
from hicache_doctor.artifacts.secret_text import masked
from hicache_doctor.artifacts.secrets import scrub
from hicache_doctor.artifacts.source import Source
from hicache_doctor.evidence.rows import LogRecord, Row, Setting

if TYPE_CHECKING:
    from hicache_doctor.artifacts.inventory import Read

KIND = "crash_request"
_EPOCH = 1e9  # smaller times are of a clock that began when the host did


def read(source: Source, result: Read, children: Children, *, prompts: bool, otherwise: str) -> None:
    """Have ``result`` filled, once ``children`` have read it. ``prompts``: keep a clipped one of each request;
    ``otherwise``: the note of a pickle that is none of SGLang's crash dumps."""
    entry = result.artifact

    def take(answer: Answer) -> None:
        header = answer.header
        if answer.error or "other" in header:
            why = otherwise if not answer.error else f"refused: {answer.error}"
            entry.note = _join(entry.note, *answer.notes, why)
            return
        entry.reader, entry.kind = "crash pickle", "SGLang crash dump"
        entry.read = "part" if answer.notes or header["more"] else "all"
        entry.note = _join(entry.note, *answer.notes, _note(header, prompts))
        result.rows += _rows(header, source.path)

    children.ask("crash pickle", source, take, prompts=prompts)


def _note(header: Mapping[str, Any], prompts: bool) -> str:
    requests = header["requests"]
    unfinished = sum(not r["finished"] for r in requests)
    more = f", and {header['more']} more that were left out" if header["more"] else ""
    kept = "prompts clipped" if prompts else "prompts and outputs left out"
    return f"{len(requests)} requests, {unfinished} of them unfinished{more}; {kept}"


def _rows(header: Mapping[str, Any], artifact: str) -> Iterator[Row]:
    # Since 0.5.17 the resolved values lie beside the object: they are what the server ran with.
    for key, value in {**header["server_args"], **header["resolved_config"]}.items():
        yield Setting(key, masked(key, value), "server_args (crash dump)", artifact, None)
    if header["launch_command"]:
        for row in launch.parse([(1, header["launch_command"])], artifact):
            if isinstance(row, Setting):
                row.line = None
            yield row
    for i, request in enumerate(header["requests"]):
        yield _record(request, i, artifact)


def _record(request: dict[str, Any], i: int, artifact: str) -> LogRecord:
    state = "finished" if request.pop("finished") else "unfinished"
    fields = {key: value for key, value in request.items() if value is not None}
    if "prompt" in fields:
        fields["prompt"] = scrub(fields["prompt"])
    created = request["created"]
    ended = request["ended"] if state == "finished" else None
    ts = next((t for t in (ended, created) if t is not None and t > _EPOCH), None)
    counts = (f"{_or_unknown(request[k])} {k.replace('_', ' ')}" for k in ("prompt_tokens", "output_tokens"))
    text = f"{state} request {request['rid'] or i}: {', '.join(counts)}"
    return LogRecord(artifact, 0, 0, 0, ts, None, KIND, {**fields, "state": state, "record": i}, scrub(text))


def _or_unknown(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
