"""Make ``samples/crash_dumps/made`` anew: one small dump a signature, with the verdict that it must get.

    python -m tests.make_samples [FOLDER]

What a dump must be diagnosed as comes from ``rules/matrix.yaml``, never from what the tool says of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hicache_doctor import reproduce
from hicache_doctor.runtime import sim_dump
from hicache_doctor.runtime.scenarios import BY_NAME
from hicache_doctor.signatures.matrix import Row, load_matrix

LARGEST = 300_000
EXPECTED = "expected.json"


def rows() -> list[Row]:
    """The rows of the matrix that name a signature, the first of each signature."""
    first: dict[str, Row] = {}
    for row in load_matrix().rows:
        if row.signature:
            first.setdefault(row.signature, row)
    return list(first.values())


def make(name: str, out: Path) -> None:
    """One dump."""
    run, _, _ = reproduce.find(BY_NAME[name])
    sim_dump.write(out, run.config, run.outcome, force=True)
    size = out.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{out}: {size} bytes, at most {LARGEST}")


def main() -> None:
    """All of them, and the table of what they must get."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("samples/crash_dumps/made")
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for row in rows():
        name = row.scenario
        make(name, folder / f"{name}.dump")
        expected[f"{name}.dump"] = row.model_dump(include={"status", "signature", "root_cause_pr"})
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
