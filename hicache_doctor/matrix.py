"""Every known incident, made, diagnosed and held against ``rules/matrix.yaml``: the rule × fault matrix.

``python -m hicache_doctor.matrix`` runs every row in the simulation from three starting points; ``--world processes``
runs the rows that real processes show. Exit 1 when a verdict is not the one that was written down beforehand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_doctor.errors import DoctorError
from hicache_doctor.incident import Tools
from hicache_doctor.reproduce import WORLDS, Reproduction, reproduce
from hicache_doctor.signatures.matrix import Matrix, Row, load_matrix
from hicache_doctor.signatures.verdict import Verdict

STARTS = (0, 1000, 2000)
"""Where the search for a failing schedule begins: each finds another one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row, once: what was seen, and what of it is not as expected."""

    row: Row
    start: int
    verdict: Verdict | None
    problems: list[str]

    @property
    def ok(self) -> bool:
        """As written down."""
        return not self.problems


def check(row: Row, made: Reproduction) -> list[str]:
    """What differs between a reproduction and its row."""
    verdict = made.verdict
    parted = verdict.first_divergence
    seen_and_wanted: list[tuple[str, object, object]] = [
        ("status", verdict.status, row.status),
        ("signature", verdict.signature, row.signature),
        ("root cause", verdict.root_cause_pr, row.root_cause_pr),
    ]
    ranks = row.first_rank if isinstance(row.first_rank, list) else [row.first_rank]
    if verdict.first_failing_rank not in ranks:
        seen_and_wanted.append(("first rank", verdict.first_failing_rank, " or ".join(map(str, ranks))))
    if row.status == "signature":
        seen_and_wanted.append(("confidence", verdict.confidence, row.confidence))
        seen_and_wanted.append(("repairs", sorted(made.repaired.fixes) if made.repaired else [], sorted(row.fixes)))
    if row.culprits:
        seen_and_wanted.append(("culprits", sorted(verdict.culprits), sorted(row.culprits)))
    if row.parts_in:
        seen_and_wanted.append(("first divergence", parted.stream if parted else None, row.parts_in))
    problems = [f"{what} {seen}, not {wanted}" for what, seen, wanted in seen_and_wanted if seen != wanted]
    beside = {a.signature for a in verdict.also}
    problems += [f"{wanted} is not named beside it" for wanted in row.also if wanted not in beside]
    # No release is known here, and an open pull request is no repair that anyone could install.
    problems += [f"#{f.pr} is named as a fix ({f.state})" for f in verdict.fixes if f.state != "merged"]
    problems += [f"#{f.pr} is said to be in a release" for f in verdict.fixes if f.in_your_release is not None]
    if parted is not None and (len(parted.values) < 2 or len(parted.citations) < 2):
        problems.append("the first divergence lacks a side")
    return problems


def run(
    rows: Iterable[Row], *, world: str = "simulation", starts: Sequence[int] = STARTS, tools: Tools | None = None
) -> Iterator[Outcome]:
    """Each row from each starting point."""
    tools = tools or Tools.load()
    with tempfile.TemporaryDirectory(prefix="hicache-doctor-matrix-") as folder:
        for row in rows:
            for start in starts:
                dump = Path(folder) / "crash.dump"
                try:
                    made = reproduce(row.scenario, dump, world=world, force=True, tools=tools, start=start)
                except DoctorError as e:
                    yield Outcome(row, start, None, [str(e)])
                    continue
                yield Outcome(row, start, made.verdict, check(row, made))


def chosen(matrix: Matrix, world: str, names: Sequence[str]) -> list[Row]:
    """The rows of a world, or those that are named."""
    rows = [r for r in matrix.rows if r.real or world == "simulation"]
    return [r for r in matrix.rows if r.scenario in names] if names else rows


def table(outcomes: Sequence[Outcome]) -> str:
    """Rows × what was expected and seen, one line a row; runs that agree are counted."""
    head = ("scenario", "expected", "seen", "root", "first rank", "ok")
    lines = [head]
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.row.scenario, []).append(outcome)
    for name, of_row in grouped.items():
        row, verdicts = of_row[0].row, [o.verdict for o in of_row]
        seen = dict.fromkeys((v.signature or v.status) if v else "-" for v in verdicts)
        roots = dict.fromkeys(str(v.root_cause_pr or "-") if v else "-" for v in verdicts)
        ranks = dict.fromkeys((v.first_failing_rank or "-") if v else "-" for v in verdicts)
        good = sum(o.ok for o in of_row)
        expected = row.signature or row.status
        lines.append((name, expected, "/".join(seen), "/".join(roots), "/".join(ranks), f"{good} of {len(of_row)}"))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="hicache_doctor.matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help="scenarios to run; all of the world's without any")
    parser.add_argument("--world", choices=WORLDS, default=WORLDS[0])
    parser.add_argument("--times", type=int, default=None, help="runs a row (3 in the simulation, 1 in processes)")
    args = parser.parse_args(argv)
    rows = chosen(load_matrix(), args.world, args.rows)
    times = args.times or (len(STARTS) if args.world == WORLDS[0] else 1)
    starts = [1000 * i for i in range(times)]
    outcomes = []
    for outcome in run(rows, world=args.world, starts=starts):
        outcomes.append(outcome)
        for problem in outcome.problems:
            print(f"{outcome.row.scenario} from {outcome.start}: {problem}", file=sys.stderr, flush=True)
    print(table(outcomes))
    return 0 if outcomes and all(o.ok for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
