"""Expansion of hostile inputs: everything that can be read is read once, the rest is one line each, nothing escapes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import socket
import stat
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts.archive import Problem
from hicache_doctor.artifacts.expand import expand
from hicache_doctor.artifacts.names import Taken, labels, member, shown
from hicache_doctor.artifacts.packing import Limits
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.tar import entries

LOG = b"[2026-06-04 03:40:05 PP0 TP0] Prefill batch, #new-token: 14033\n"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, errors="surrogateescape") as t:
        for m in members:
            if isinstance(m, tarfile.TarInfo):
                t.addfile(m)
            else:
                info = tarfile.TarInfo(m[0])
                info.size = len(m[1])
                t.addfile(info, io.BytesIO(m[1]))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


class Desk:
    """A folder for inputs, a spool, and a watch over everything else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.input = root / "desk" / "input"
        self.spool = root / "spool"
        self.input.mkdir(parents=True)
        self.spool.mkdir(mode=0o700)

    def put(self, name: str, data: bytes) -> Path:
        file = self.input / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def outside(self) -> list[str]:
        return sorted(str(p) for p in self.root.rglob("*") if self.spool not in p.parents)

    def expand(
        self, *paths: Path | str, stdin: bytes | None = None, limits: Limits | None = None
    ) -> tuple[dict[str, bytes], dict[str, Problem]]:
        before = self.outside()
        read: dict[str, bytes] = {}
        problems: dict[str, Problem] = {}
        arguments = [str(p) for p in paths] or [str(self.input)]
        pipe = None if stdin is None else io.BytesIO(stdin)
        for item in expand(arguments, spool=self.spool, stdin=pipe, limits=limits or Limits()):
            assert item.path not in read
            assert item.path.isprintable()
            if isinstance(item, Source):
                read[item.path] = b"".join(bytes(b) for b in item.blocks())
            else:
                assert item.note and item.note.isprintable() and item.kind
                problems[item.path] = item
        assert self.outside() == before
        for file in self.spool.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert file.name.isdigit()
        return read, problems


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_folder_is_read_in_order_with_paths_relative_to_it(desk: Desk) -> None:
    for name in ("b/stdout-4.log", "a.log", "b/stdout-10.log", "c/d/e"):
        desk.put(name, name.encode())
    read, problems = desk.expand()
    assert list(read) == ["a.log", "b/stdout-10.log", "b/stdout-4.log", "c/d/e"]
    assert read["c/d/e"] == b"c/d/e"
    assert not problems


def test_a_file_is_shown_by_its_own_name(desk: Desk) -> None:
    assert desk.expand(desk.put("b/pp1.log", LOG))[0] == {"pp1.log": LOG}


def test_the_same_name_from_two_arguments_gets_the_argument_in_front(desk: Desk) -> None:
    files = [desk.put("a/pp0.log", b"a"), desk.put("b/pp0.log", b"b"), desk.put("c/pp1.log", b"c")]
    assert desk.expand(*files)[0] == {"a/pp0.log": b"a", "b/pp0.log": b"b", "pp1.log": b"c"}
    desk.put("a/only", b"d")
    read, _ = desk.expand(desk.input / "a", desk.input / "b")
    assert read == {"a/only": b"d", "a/pp0.log": b"a", "b/pp0.log": b"b"}


def test_a_file_that_is_named_twice_is_read_once(desk: Desk) -> None:
    file = desk.put("x.log", LOG)
    os.link(file, desk.input / "y.log")
    os.symlink("x.log", desk.input / "a-link.log")
    read, problems = desk.expand(desk.input, file)
    assert read == {"x.log": LOG}
    assert {p: v.kind for p, v in problems.items()} == {
        "a-link.log": "same file",
        "y.log": "same file",
    }


def test_links_are_followed_within_the_folder_only(desk: Desk) -> None:
    secret = desk.root / "secret"
    secret.write_bytes(b"never read")
    desk.put("d/x.log", LOG)
    for name, target in {
        "loop": ".",
        "d/up": "..",
        "self": "self",
        "gone": "nowhere",
        "out": str(secret),
        "etc": "/etc",
        "device": "/dev/zero",
    }.items():
        os.symlink(target, desk.input / name)
    read, problems = desk.expand()
    assert read == {"d/x.log": LOG}
    assert {p: v.kind for p, v in problems.items()} == {
        "d/up": "link to a folder",
        "device": "link outside",
        "etc": "link outside",
        "gone": "missing",
        "loop": "link to a folder",
        "out": "link outside",
        "self": "unreadable",
    }
    assert desk.expand(desk.input / "out")[0] == {"out": b"never read"}  # named itself: the user means it


def test_what_is_no_file_is_a_line_each(desk: Desk) -> None:
    desk.put("a.log", LOG)
    desk.put("empty.log", b"")
    os.mkfifo(desk.input / "pipe")
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(desk.input / "sock"))
    s.close()
    read, problems = desk.expand(desk.input, "/dev/null", desk.input / "gone.log", "nul\0byte")
    assert read == {"a.log": LOG}
    assert {p: v.kind for p, v in problems.items()} == {
        "empty.log": "empty",
        "pipe": "FIFO",
        "sock": "socket",
        "null": "device",
        "gone.log": "missing",
        "nul\\x00byte": "unreadable",
    }
    assert problems["pipe"].row().read == "none"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_line(desk: Desk) -> None:
    desk.put("a.log", LOG).chmod(0)
    desk.put("d/b.log", LOG)
    (desk.input / "d").chmod(0)
    try:
        read, problems = desk.expand()
    finally:
        (desk.input / "d").chmod(0o700)
    assert not read
    assert {p: v.kind for p, v in problems.items()} == {"a.log": "unreadable", "d": "unreadable"}


def test_files_that_vanish_meanwhile_are_a_line_each(desk: Desk) -> None:
    for i in range(3):
        desk.put(f"{i}.log", LOG)
    items = expand([str(desk.input)], spool=desk.spool, stdin=None)
    assert next(items).path == "0.log"
    (desk.input / "1.log").unlink()
    gone, last = items
    assert isinstance(gone, Problem) and gone.kind == "missing" and "vanished" in gone.note
    assert isinstance(last, Source)


def test_ten_thousand_files(desk: Desk) -> None:
    for i in range(10_000):
        (desk.input / f"stdout-{i}.log").write_bytes(LOG)
    items = list(expand([str(desk.input)], spool=desk.spool, stdin=None))
    assert len(items) == 10_000
    assert not list(desk.spool.iterdir())
    few = list(expand([str(desk.input)], spool=desk.spool, stdin=None, limits=Limits(files=9_999)))
    assert [i.kind for i in few if isinstance(i, Problem)] == ["folder limit"]


def test_standard_input(desk: Desk) -> None:
    assert desk.expand("-", stdin=LOG) == ({"stdin": LOG}, {})
    read, problems = desk.expand("-", "-", desk.put("a.log", b"a"), stdin=gzip.compress(tar(("x", LOG))))
    assert (read, problems) == ({"stdin!x": LOG, "a.log": b"a"}, {})
    assert desk.expand("-", stdin=b"")[1]["stdin"].kind == "empty"
    assert desk.expand("-")[1]["stdin"].kind == "missing"


def test_a_pipe_of_the_shell(desk: Desk) -> None:
    r, w = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(w, LOG), os.close(w)))
    writer.start()
    read, problems = desk.expand(f"/dev/fd/{r}")
    writer.join()
    os.close(r)
    assert (read, problems) == ({str(r): LOG}, {})


@pytest.mark.parametrize("pack", ["", *PACK])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_are_opened_by_content(desk: Desk, pack: str, format: int) -> None:
    data = tar(("logs/pp1.log", LOG), ("n" * 90 + "/" + "m" * 90, b"x"), special("d", tarfile.DIRTYPE), format=format)
    file = desk.put("crash.dump", PACK[pack](data) if pack else data)
    assert desk.expand(file) == (
        {"crash.dump!logs/pp1.log": LOG, f"crash.dump!{'n' * 90}/{'m' * 90}": b"x"},
        {},
    )


@pytest.mark.parametrize("pack", PACK)
def test_packed_files_are_read_under_their_own_name(desk: Desk, pack: str) -> None:
    assert desk.expand(desk.put("server.log", PACK[pack](LOG))) == ({"server.log": LOG}, {})
    twice = desk.put("twice.log", gzip.compress(PACK[pack](LOG)))
    assert desk.expand(twice) == ({"twice.log": LOG}, {})
    inside = desk.put("inside.zip", zipped(("a", PACK[pack](LOG)), ("b", LOG)))
    assert desk.expand(inside) == ({"inside.zip!a": LOG, "inside.zip!b": LOG}, {})


def test_utf16_is_read_as_utf8(desk: Desk) -> None:
    text = "[2026-06-04] Übergröße\r\n" * 1000
    for i, data in enumerate([text.encode("utf-16"), gzip.compress(text.encode("utf-16-le")), text.encode("utf-32")]):
        assert list(desk.expand(desk.put(f"{i}.log", data))[0].values()) == [text.encode()]


def hostile_names() -> list[str]:
    return ["../../etc/x", "/etc/y", "a/../../b", "..\\..\\w", "C:\\w\\v", "new\nline", "esc\x1b[31m", "bidi\u202egol"]


@pytest.mark.parametrize("make", [tar, zipped])
def test_names_are_shown_safely_and_never_obeyed(desk: Desk, make: Callable[..., bytes]) -> None:
    desk.put(
        "x.bin",
        make(
            *((name, name.encode()) for name in hostile_names()),
            ("bad\udcff", b"b")[: 2 * (make is tar)] or ("good", b"g"),
        ),
    )
    items = [i for i in expand([str(desk.input)], spool=desk.spool, stdin=None) if isinstance(i, Source)]
    assert [i.path for i in items][:8] == [
        "x.bin!(..)/(..)/etc/x",
        "x.bin!etc/y",
        "x.bin!a/(..)/(..)/b",
        "x.bin!(..)/(..)/w",
        "x.bin!C:/w/v",
        "x.bin!new\\x0aline",
        "x.bin!esc\\x1b[31m",
        "x.bin!bidi\\u202egol",
    ]
    assert all("its name in the archive" in i.note for i in items[:8])
    assert len(items) == 9
    if make is tar:
        assert items[8].path == "x.bin!bad\\xff" and "not UTF-8" in items[8].note
    desk.expand()


def test_links_and_devices_in_a_tar_are_never_followed(desk: Desk) -> None:
    file = desk.put(
        "t.tar",
        tar(
            special("sym", tarfile.SYMTYPE, "/etc/passwd"),
            special("hard", tarfile.LNKTYPE, "/etc/passwd"),
            special("char", tarfile.CHRTYPE),
            special("block", tarfile.BLKTYPE),
            special("fifo", tarfile.FIFOTYPE),
            special("odd", b"Q"),
            ("sym/x", b"written through the link"),
            ("last", LOG),
        ),
    )
    read, problems = desk.expand(file)
    assert read == {"t.tar!sym/x": b"written through the link", "t.tar!last": LOG}
    assert [p.kind for p in problems.values()] == [
        "symbolic link",
        "hard link",
        "device",
        "device",
        "FIFO",
        "unknown entry",
    ]


def test_links_in_a_zip_are_never_followed(desk: Desk) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        z.writestr(info, "/etc/passwd")
        z.writestr("dir/", "")
    assert desk.expand(desk.put("z", out.getvalue()))[1]["z!link"].kind == "symbolic link"


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_names_are_all_read(desk: Desk, make: Callable[..., bytes]) -> None:
    file = desk.put("x", make(("a", b"1"), ("a", b"2"), ("a#2", b"3"), ("./a", b"4")))
    assert desk.expand(file)[0] == {"x!a": b"1", "x!a#2": b"2", "x!a#2#2": b"3", "x!a#3": b"4"}


@pytest.mark.parametrize("make", [tar, zipped])
def test_archives_in_archives_to_a_depth(desk: Desk, make: Callable[..., bytes]) -> None:
    data = LOG
    for i in range(6):
        data = make((f"{i}", data), (f"log{i}", LOG))
    read, problems = desk.expand(desk.put("x", data))
    assert list(read) == ["x!5!4!3!log2", "x!5!4!log3", "x!5!log4", "x!log5"]
    assert {p: v.kind for p, v in problems.items()} == {"x!5!4!3!2": "archive depth"}
    assert len(list(desk.spool.iterdir())) == 5  # what is left is what may be read, and the one that was not opened


def test_packed_and_packed_again_to_a_depth(desk: Desk) -> None:
    data = LOG
    for _ in range(12):
        data = gzip.compress(data)
    assert desk.expand(desk.put("x", data))[1]["x"].kind == "archive depth"


@pytest.mark.parametrize("pack", ["gz", "zst", ""])
def test_a_truncated_tar_gives_what_is_there(desk: Desk, pack: str) -> None:
    noise = random.Random(1).randbytes(300_000)
    data = tar(("a.log", LOG), ("b.log", noise), ("c.log", LOG))
    data = PACK[pack](data) if pack else data
    file = desk.put("t.tgz", data[: len(data) // 2])
    read, problems = desk.expand(file)
    assert read["t.tgz!a.log"] == LOG
    assert noise.startswith(read["t.tgz!b.log"]) and read["t.tgz!b.log"]
    assert problems["t.tgz"].kind == "damaged archive"
    assert "truncated" in problems["t.tgz"].note or not pack


def test_a_damaged_header_is_not_taken_for_the_end(desk: Desk) -> None:
    data = bytearray(tar(("a", LOG), ("b", LOG), format=tarfile.USTAR_FORMAT))
    data[1024 + 5] ^= 0xFF
    read, problems = desk.expand(desk.put("t", bytes(data)))
    assert read == {"t!a": LOG}
    assert "header at byte 1024 is damaged" in problems["t"].note


def test_headers_that_claim_the_impossible(desk: Desk) -> None:
    def header(size: bytes, kind: bytes = b"0") -> bytes:
        h = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT)[:512])
        h[124:136], h[156:157], h[148:156] = size, kind, b" " * 8
        h[148:156] = b"%06o\0 " % sum(h)
        return bytes(h)

    for size in (b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"77777777777\0", b"zzzzzzzzzzz\0", b"-0000000010\0"):
        for kind in b"0xgLKS5":
            read, _ = desk.expand(desk.put("t", header(size, bytes([kind])) + LOG))
            assert len(b"".join(read.values())) < 1000
    pax = b"30 size=99999999999999999999999\n"
    data = (
        header(b"%011o\0" % len(pax), b"x") + pax.ljust(512, b"\0") + header(b"%011o\0" % 3) + b"abc".ljust(512, b"\0")
    )
    assert "impossible size" in desk.expand(desk.put("t", data))[1]["t"].note


def test_sparse_members_are_named_and_passed(desk: Desk) -> None:
    first = bytearray(tarfile.TarInfo("core").tobuf(tarfile.GNU_FORMAT)[:512])
    first[156:157], first[482], first[124:136], first[148:156] = b"S", 1, b"%011o\0" % 512, b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    data = bytes(first) + bytes(504) + b"\1" + bytes(7) + bytes(512) + b"x" * 512 + tar(("after", LOG))
    read, problems = desk.expand(desk.put("t", data))
    assert read == {"t!after": LOG}
    assert problems["t!core"].kind == "sparse file"


def test_a_corrupt_zip(desk: Desk) -> None:
    noise = random.Random(1).randbytes(20_000)
    whole = zipped(("a.log", noise), ("b.log", LOG))
    at = whole.index(noise[:20]) if noise[:20] in whole else 5_000
    corrupt = whole[:at] + bytes(100) + whole[at + 100 :]
    items = {i.path: i for i in expand([str(desk.put("z", corrupt))], spool=desk.spool, stdin=None)}
    assert "damaged" in items["z!a.log"].note
    assert isinstance(items["z!b.log"], Source)
    assert desk.expand(desk.put("cut.zip", whole[:-30]))[1]["cut.zip"].kind == "damaged archive"
    for at in range(len(whole) - 150, len(whole)):
        desk.expand(desk.put("z", whole[:at] + b"\xff" + whole[at + 1 :]))


def test_encrypted_and_unknown_members_of_a_zip(desk: Desk) -> None:
    data = bytearray(zipped(("secret.log", LOG), ("odd.log", LOG), ("plain.log", LOG), method=zipfile.ZIP_STORED))
    local = [m for m in range(len(data)) if data[m : m + 4] == b"PK\3\4"]
    central = [m for m in range(len(data)) if data[m : m + 4] == b"PK\1\2"]
    data[local[0] + 6] |= 1
    data[central[0] + 8] |= 1
    data[local[1] + 8 : local[1] + 10] = data[central[1] + 10 : central[1] + 12] = struct.pack("<H", 99)
    read, problems = desk.expand(desk.put("z", bytes(data)))
    assert read == {"z!plain.log": LOG}
    assert {p: v.kind for p, v in problems.items()} == {
        "z!secret.log": "encrypted",
        "z!odd.log": "unknown compression",
    }


def test_an_absurd_member_list_is_refused(desk: Desk) -> None:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 0xFFFFFF0, 0, 0)
    assert desk.expand(desk.put("z", b"PK\3\4" + bytes(100) + end))[1]["z"].kind == "archive limit"
    assert desk.expand(desk.put("z", zipped()))[1]["z"].kind == "empty archive"


def overlapping_bomb(entries: int, size: int) -> bytes:
    """A zip whose central directory names the same deflated zeros again and again (42.zip without the layers)."""
    z = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = z.compress(bytes(size)) + z.flush()
    crc = zlib.crc32(bytes(size))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, crc, len(packed), size, 1, 0) + b"a" + packed
    central = (
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, crc, len(packed), size, 1, 0, 0, 0, 0, 0, 0) + b"a"
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, entries, entries, len(central) * entries, len(local), 0)
    return local + central * entries + end


def test_bombs_are_stopped(desk: Desk) -> None:
    limits = Limits(ratio_from=8 << 20, ratio=500)
    zeros = bytes(32 << 20)
    bombs = {
        "overlap.zip": overlapping_bomb(200, 1 << 20),
        "one.zip": zipped(("a", zeros)),
        "tar.gz": gzip.compress(tar(("a", zeros))),
        "tar.xz": lzma.compress(tar(("a", zeros))),
        "nested.zip": zipped(
            *((f"{i}.zip", zipped(*((f"{j}", zeros[: 2 << 20]) for j in range(4)))) for i in range(8))
        ),
    }
    for name, data in bombs.items():
        read, problems = desk.expand(desk.put(name, data), limits=limits)
        assert any("bomb" in p.note for p in problems.values()), name
        assert sum(map(len, read.values())) <= 9 << 20, name


def test_the_totals_are_limits_and_plain_files_go_on(desk: Desk) -> None:
    desk.put("a.tar", tar(*((f"{i}", LOG) for i in range(50))))
    desk.put("b.log", LOG)
    desk.put("c.zip", zipped(("x", LOG)))
    read, problems = desk.expand(limits=Limits(members=10))
    assert list(read) == [*(f"a.tar!{i}" for i in range(10)), "b.log"]
    assert {p: v.kind for p, v in problems.items()} == {"a.tar": "limit", "c.zip": "limit"}
    read, problems = desk.expand(limits=Limits(total=5 * len(LOG)))
    assert list(read)[:6] == ["a.tar!0", "a.tar!1", "a.tar!2", "a.tar!3", "a.tar!4", "b.log"]
    assert "more than" in problems["a.tar"].note


def test_foreign_archives_are_named(desk: Desk) -> None:
    desk.put("x", b"7z\xbc\xaf\x27\x1c" + bytes(100))
    desk.put("y", gzip.compress(b"Rar!\x1a\x07\x01\x00" + bytes(100)))
    assert {p: v.kind for p, v in desk.expand()[1].items()} == {"x": "7z", "y": "rar"}


def test_a_full_disk_is_a_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    file = desk.put("t.tar", tar(("a", LOG)))
    before = os.open
    monkeypatch.setattr(os, "open", lambda p, f, *m, **k: refuse() if f & os.O_CREAT else before(p, f, *m, **k))
    items = list(expand([str(file)], spool=desk.spool, stdin=None))
    assert isinstance(items[0], Problem) and "No space left" in items[0].note and "TMPDIR" in items[0].note


def mutations() -> Iterator[bytes]:
    rng = random.Random(7)
    for make in (tar, zipped):
        whole = make(("a", LOG * 5), ("b/" + "c" * 120, LOG), ("d", zipped(("e", LOG))))
        for data in (whole, gzip.compress(whole), PACK["zst"](whole)):
            for _ in range(60):
                hostile = bytearray(data)
                for _ in range(rng.randrange(1, 6)):
                    hostile[rng.randrange(len(hostile))] = rng.randrange(256)
                yield bytes(hostile[: rng.choice([len(hostile), rng.randrange(len(hostile))])])


def test_mutated_archives_never_raise(desk: Desk) -> None:
    file = desk.input / "x"
    for data in mutations():
        file.write_bytes(data)
        desk.expand(file)


MAGICS = st.sampled_from(
    [b"", b"PK\3\4", b"PK\5\6", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh91AY&SY"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(magic=MAGICS, data=st.binary(max_size=1500))
def test_no_bytes_raise(desk: Desk, magic: bytes, data: bytes) -> None:
    file = desk.input / "x"
    file.write_bytes(magic + data)
    read, problems = desk.expand(file)
    assert read or problems
    desk.expand("-", stdin=magic + data)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=150), st.binary(max_size=2000)), max_size=6), st.integers(0, 2))
def test_tars_are_read_as_tarfile_reads_them(members: list[tuple[str, bytes]], format: int) -> None:
    # A regular file whose name ends in a slash is a folder to some readers and a file to others.
    assume(not any(name.endswith("/") for name, _ in members))
    try:
        data = tar(*((name, content) for name, content in members), format=format)
    except (ValueError, UnicodeError):  # a name that this format cannot hold
        return
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as t:
        wanted = [(m.name, m.isreg(), f.read() if (f := t.extractfile(m)) else b"") for m in t]
    stream = io.BytesIO(data)
    got = [
        (e.name.decode("utf-8", "surrogateescape").rstrip("/"), e.kind == "file", b"".join(e.data))
        for e in entries(stream.read)
    ]
    assert [(n.rstrip("/"), r, c) for n, r, c in wanted] == got


@given(st.text(max_size=400), st.binary(max_size=400))
def test_shown_names_are_one_safe_line(name: str, raw: bytes) -> None:
    for text in (shown(name), member(name)[0], member(raw)[0]):
        assert text.isprintable()
        assert len(text) < 300
    assert not {"..", ""} & set(member(raw)[0].split("/"))


def test_labels_are_the_shortest_that_differ() -> None:
    assert labels(["/x/a/pp0", "/y/a/pp0", "/y/b/pp0"]) == ["x/a/pp0", "y/a/pp0", "b/pp0"]
    assert labels(["/x", "/x"]) == ["x", "x"]
    taken = Taken()
    assert [taken.unique(p) for p in ("a", "a#2", "a", "a")] == ["a", "a#2", "a#3", "a#4"]
