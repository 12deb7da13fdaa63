"""``crash.dump``: whole or not at all, the same bytes for the same members, nothing of a manifest believed."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor import bundle
from hicache_doctor.bundle import Manifest, RankEntry, Source
from hicache_doctor.errors import InputError, UsageError
from hicache_doctor.incident import analyze
from hicache_doctor.probes.trim import newest
from tests.probes.rings import wrote

ROOT = Path(__file__).resolve().parents[1]
LOG = "[2026-05-28 02:00:00 PP0 TP0] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.1\n"


def manifest(**more: Any) -> Manifest:
    ranks = [RankEntry("PP0 TP0", 0, "node0", 11, -9), RankEntry("PP1 TP0", 1, "node1", 12, None)]
    return Manifest("node0", "2026-05-28T02:00:00Z", "0.1", ranks, **more)


def folder_of(base: Path) -> Path:
    for name, text in {"logs/0.log": LOG, "settings.log": "pp_size=2\n", "pyspy/0.json": "[]", "a.txt": ""}.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return base


def members(path: Path) -> dict[str, bytes]:
    with path.open("rb") as f:
        data = zstandard.ZstdDecompressor().stream_reader(f, read_across_frames=True).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: f.read() for m in tar if (f := tar.extractfile(m)) is not None}


def test_a_folder_goes_in_and_comes_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in")
    (folder / "link.log").symlink_to("/etc/hostname")
    written = bundle.write_bundle(tmp_path / "crash.dump", folder, manifest())
    got = members(tmp_path / "crash.dump")
    # THEN the manifest is first, settings and logs follow, and links were not followed
    assert list(got) == ["manifest.json", "settings.log", "logs/0.log", "pyspy/0.json", "a.txt"]
    assert got["logs/0.log"] == LOG.encode() and got["a.txt"] == b""
    back = bundle.read_manifest(tmp_path / "crash.dump")
    assert back == written and [m.size for m in back.members] == [10, len(LOG), 2, 0]
    assert bundle.verify(tmp_path / "crash.dump") == []
    assert stat.S_IMODE((tmp_path / "crash.dump").stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["crash.dump", "in"]


def test_the_same_members_give_the_same_bytes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in")
    bundle.write_bundle(tmp_path / "a", folder, manifest())
    sources = [Source(s.name, s.data.read_bytes()) for s in bundle.members_of(folder) if isinstance(s.data, Path)]
    bundle.write_bundle(tmp_path / "b", reversed(sources), manifest())
    bundle.write_bundle(tmp_path / "c", [Source(s.name, lambda s=s: s.data) for s in sources], manifest())  # type: ignore[misc]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "crash.dump"
    out.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        bundle.write_bundle(out, [], manifest())
    assert out.read_text() == "precious"
    bundle.write_bundle(out, [], manifest(), force=True)
    assert bundle.read_manifest(out).host == "node0"
    with pytest.raises(UsageError, match="is no folder"):
        bundle.write_bundle(tmp_path / "no" / "x", [], manifest())


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../b", "a//b", ".hidden", "a/", "x" * 101, "a\nb", "manifest.json", "ä"]
)
def test_only_plain_names_go_in(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError):
        bundle.write_bundle(tmp_path / "x", [Source(name, b"")], manifest())
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="twice"):
        bundle.write_bundle(tmp_path / "x", [Source("a", b""), Source("a", b"")], manifest())


def test_what_cannot_be_taken_costs_itself(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def gone() -> bytes:
        raise FileNotFoundError(2, "No such file or directory", "x")

    sources = [
        Source("logs/0.log", tmp_path / "missing"),
        Source("logs/1.log", LOG.encode()),
        Source("logs/2.log", gone),
        Source("logs/3.log", tmp_path / "pipe"),
    ]
    written = bundle.write_bundle(tmp_path / "x", sources, manifest())
    assert [m.name for m in written.members] == ["logs/1.log"]
    assert written.notes == [
        "logs/0.log: not taken (No such file or directory)",
        "logs/2.log: not taken (No such file or directory)",
        "logs/3.log: not taken (not a regular file)",
    ]
    assert bundle.verify(tmp_path / "x") == []


def test_a_log_that_grows_or_shrinks_meanwhile_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("0123456789")
    original = bundle._chunks

    def changed(f: Any, size: int) -> Any:
        os.truncate(tmp_path / "log", changes.pop(0))
        return original(f, size)

    monkeypatch.setattr(bundle, "_chunks", changed)
    changes = [100, 4]
    first = bundle.write_bundle(tmp_path / "x", [Source("logs/0.log", tmp_path / "log")], manifest())
    assert (first.members[0].size, first.notes) == (10, [])
    second = bundle.write_bundle(tmp_path / "y", [Source("logs/0.log", tmp_path / "log")], manifest())
    assert second.notes == ["logs/0.log: 96 bytes at its end could not be read and are zero"]
    assert members(tmp_path / "y")["logs/0.log"] == b"0123" + bytes(96)
    assert bundle.verify(tmp_path / "x") == bundle.verify(tmp_path / "y") == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
    import os, resource, sys
    from hicache_doctor import bundle
    from hicache_doctor.errors import DoctorError
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
    try:
        bundle.write_bundle(sys.argv[1] + "/x", [bundle.Source("logs/0.log", os.urandom(1_000_000))], bundle.Manifest())
    except DoctorError as e:
        print(e)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[4:] for line in script.splitlines()), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "cannot be written (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"text", zstandard.compress(b"x" * 2000), zstandard.compress(b"")])
def test_what_is_no_bundle_is_told_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError) as caught:
        bundle.read_manifest(tmp_path / "x")
    assert "\n" not in str(caught.value) and str(tmp_path / "x") in str(caught.value)


def test_a_bundle_that_was_changed_is_noticed(tmp_path: Path) -> None:
    bundle.write_bundle(tmp_path / "x", folder_of(tmp_path / "in"), manifest())
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-40])
    assert bundle.verify(tmp_path / "cut")
    lying = manifest(members=[bundle.Member("logs/0.log", 4, "00"), bundle.Member("gone", 1, "00")])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in {"manifest.json": lying.dump(), "logs/0.log": b"abcd", "more": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    (tmp_path / "lie").write_bytes(zstandard.compress(packed.getvalue()))
    assert bundle.verify(tmp_path / "lie") == [
        "logs/0.log: not what the manifest says",
        "more: not in the manifest",
        "gone: missing",
    ]


KEYS = ("format", "schema_version", "host", "created", "tool_version", "ranks", "notes", "members", "name", "label")
LEAVES = st.none() | st.integers() | st.text(max_size=5)


@given(st.recursive(LEAVES, lambda c: st.lists(c) | st.dictionaries(st.sampled_from(KEYS), c), max_leaves=12))
def test_no_manifest_raises_anything_else(words: Any) -> None:
    text = json.loads(manifest().dump())
    for candidate in (words, {**text, **words} if isinstance(words, dict) else {**text, "ranks": words}):
        try:
            bundle.parse_manifest(json.dumps(candidate).encode())
        except InputError as e:
            assert "\n" not in str(e)
    with pytest.raises(InputError, match="use a newer one"):
        bundle.parse_manifest(json.dumps({**text, "schema_version": 2}).encode())


def test_a_bundle_is_read_as_evidence(tmp_path: Path) -> None:
    # GIVEN a bundle with shortened rings and a log
    for rank in range(2):
        wrote(tmp_path / "rings", 300, rank=rank, label=f"PP{rank} TP0", pp=rank, segment_slots=100)
    sources = [Source(f"rings/{n}", c) for n, c in newest((tmp_path / "rings").iterdir(), max_records=150)]
    sources.append(Source("logs/0.log", LOG.encode()))
    bundle.write_bundle(tmp_path / "crash.dump", sources, manifest())
    # WHEN it is analysed
    result = analyze([str(tmp_path / "crash.dump")])
    with result.store as store:
        kinds = {i.artifact.partition("!")[2]: (i.kind, i.read) for i in result.verdict.inventory}
        assert kinds["manifest.json"] == ("manifest", "all") and kinds["logs/0.log"][0] == "SGLang log"
        assert kinds["rings/rank0.000002.ring"] == ("ring", "all")
        # THEN the newest events are there, the processes have their hosts, and how one ended is known
        sql = "SELECT rank, count(*) AS n, min(seq) AS first FROM event GROUP BY 1 ORDER BY 1"
        assert [(r["n"], r["first"]) for r in store.rows(sql)] == [(150, 150), (150, 150)]
        # a ring knows its process better than a manifest that was written elsewhere
        hosts = store.rows("SELECT id, host FROM rank ORDER BY id")
        assert hosts == [{"id": f"PP{n} TP0", "host": socket.gethostname()} for n in range(2)]
        assert store.value("SELECT value FROM sample WHERE name = 'exit_code' AND rank = 'PP0 TP0'") == -9


def test_a_damaged_manifest_is_one_note(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(manifest().dump().replace(b'"pid": 11', b'"pid": "x"'))
    result = analyze([str(tmp_path)])
    with result.store:
        (entry,) = result.verdict.inventory
        assert (entry.kind, entry.read) == ("manifest", "none") and "not understood" in entry.note
