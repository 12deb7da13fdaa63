"""What kind of content a file holds, by its first bytes. Nothing is loaded, parsed in full, or believed by its name."""

from __future__ import annotations

import hashlib
import json
import os
import re

from hicache_doctor.artifacts.packing import packing_of
from hicache_doctor.artifacts.source import Source, open_regular
from hicache_doctor.artifacts.tar import is_tar
from hicache_doctor.probes import ring

_ENDS = 64 << 10
_MAGICS = (
    (ring.MAGIC, "ring"),
    (b"PAR1", "parquet"),
    (b"SQLite format 3\0", "sqlite"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"%PDF-", "pdf"),
    (b"PK\3\4", "zip"),
    (b"PK\5\6", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
)
_ELF_CORE = 4
# Pickles of protocol 0 and 1 have no header: what an empty or first container looks like in them.
_OLD_PICKLE = re.compile(
    rb"\((?:lp|dp|tp|ip)\d+\n|[\]}]q\x00[(.\]}XUKcJMGN]|c(?:copy_reg|__builtin__)\n|\(d?c(?:copy_reg|__builtin__)\n"
)
_FR_KEYS = (b"pg_config", b"profiling_name", b"collective_seq_id", b"comm_lib_version", b"nccl_version", b"pg_status")
# Of the bare list of entries that version 1 is, whose first entry is in the head.
_FR_ENTRY = (b"profiling_name", b"input_sizes", b"state")
# The first keys of SGLang's crash dump (tokenizer_manager.dump_requests_before_crash) are in its first bytes.
_CRASH_KEYS = (b"server_args", b"launch_command")
_CRASH_HEAD = 256
# Every byte that text does not use: controls without tab, newline, form feed, carriage return, backspace and escape.
_CONTROLS = bytes(b for b in (*range(32), 127) if b not in b"\t\n\f\r\b\x1b")
_MOST_CONTROLS = 0.02
_CUT_TOKEN = re.compile(r"[\w.+-]{0,24}\Z")  # a document that ends inside a word or number is still one


def sniff(head: bytes, name: str) -> str:
    """The kind of content that begins with ``head`` (some KiB of it).

    One of: empty, binary, text, utf16, json, jsonl, flight_recorder, flight_recorder_json, pickle, crash_pickle,
    elf_core, elf, parquet, sqlite, duckdb, hdf5, png, jpeg, pdf, ring, gzip, zstd, xz, bz2, zip, tar, 7z, rar. ``name``
    decides nothing; it is there for callers' symmetry with kinds that only a name can tell.
    """
    if not head:
        return "empty"
    if packing := packing_of(head):
        return packing
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    if head[8:12] == b"DUCK":
        return "duckdb"
    if head.startswith(b"\x7fELF"):
        little = head[5:6] != b"\2"
        return "elf_core" if int.from_bytes(head[16:18], "little" if little else "big") == _ELF_CORE else "elf"
    if _is_pickle(head):
        if _is_flight_recorder(head):
            return "flight_recorder"
        return "crash_pickle" if any(key in head[:_CRASH_HEAD] for key in _CRASH_KEYS) else "pickle"
    if is_tar(head):
        return "tar"
    if unicode_of(head):
        return "utf16"
    if not _is_text(head):
        return "binary"
    return _json_kind(head) or "text"


def unicode_of(head: bytes) -> str | None:
    """The codec of UTF-16 or UTF-32 text (by its mark, or by where the zeros are), else None."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if len(head) < 16:
        return None
    even, odd = head[0:1024:2], head[1:1024:2]
    for zeros, letters, codec in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if zeros.count(0) > 0.9 * len(zeros) and letters.count(0) == 0 and _is_text(letters):
            return codec
    return None


def digest(source: Source, whole: bool) -> str:
    """BLAKE2b of the size and the first and last 64 KiB on disk (``whole``: of everything); empty if unreadable."""
    try:
        with open_regular(source.file) as f:
            size = os.fstat(f.fileno()).st_size
            found = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
            if whole or size <= 2 * _ENDS:
                while block := f.read(1 << 20):
                    found.update(block)
            else:
                found.update(f.read(_ENDS))
                f.seek(size - _ENDS)
                found.update(f.read(_ENDS))
            return found.hexdigest()
    except OSError:
        return ""


def _is_pickle(head: bytes) -> bool:
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return head[1] < 4 or head[2:3] == b"\x95" or head[2:3] in b"]})(N\x8c\x8e\x88\x89KMJGX"
    return _OLD_PICKLE.match(head) is not None


def _is_flight_recorder(head: bytes) -> bool:
    if b"pg_config" in head or (b"entries" in head and any(key in head for key in _FR_KEYS)):
        return True
    return all(key in head for key in _FR_ENTRY)


def _is_text(head: bytes) -> bool:
    """UTF-8, Latin or another 8-bit text. Zeros in front are a hole that log rotation left."""
    head = head.lstrip(b"\0")
    if not head:
        return False
    return len(head) - len(head.translate(None, _CONTROLS)) <= _MOST_CONTROLS * len(head)


def _json_kind(head: bytes) -> str | None:
    """``json`` and its kin for a whole document, the beginning of one, or one document a line; None for other text."""
    text = head.decode("utf-8", "ignore").removeprefix("\ufeff").strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as e:
        if not e.msg.startswith("Unterminated string") and not _CUT_TOKEN.match(text, e.pos):
            return None
        end = len(text)
    except (ValueError, RecursionError):
        return None
    rest = text[end:]
    if rest:
        return "jsonl" if "\n" in rest[: len(rest) - len(rest.lstrip())] and rest.lstrip()[0] in "{[" else None
    return "flight_recorder_json" if _is_flight_recorder(head) else "json"
