"""Verdicts that name no signature, and a hostile one whose every text came from an attacker."""

from __future__ import annotations

from report_signatures import BASE, cite

from hicache_doctor.signatures.verdict import (
    Action,
    Also,
    Excluded,
    FirstDivergence,
    Fix,
    InventoryRow,
    LastMinute,
    Link,
    NextEvidence,
    OtherCause,
    OtherIncident,
    Ranks,
    Step,
    Verdict,
)


def undetermined() -> Verdict:
    return Verdict(
        status="undetermined",
        title="All ranks stopped; which collective they wait in is not visible",
        confidence_because="the logs end with a watchdog time-out and no stack of any rank was given",
        ranks=Ranks(expected=4, seen=["PP0 TP0", "PP1 TP0"], missing=["PP0 TP1", "PP1 TP1"]),
        evidence_chain=[
            Link(
                claim="PP0 TP0 made no progress for 300 s.",
                citations=[
                    cite(
                        "pp0.log",
                        77120,
                        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
                        rank="PP0 TP0",
                        time="2026-07-19T22:04:51Z",
                    )
                ],
            )
        ],
        also=[
            Also(signature="C1", confidence="possible", because="a rank left writing_check before its peers"),
            Also(signature="C6", confidence="possible", because="the ranks loaded back different numbers of pages"),
        ],
        next_evidence=[
            NextEvidence(
                why="Stacks of all ranks, twice, 10 s apart: the same frames twice = stuck.",
                command="for p in $(pgrep -f sglang::scheduler); do py-spy dump --native --pid $p > stack-$p.txt; done",
            ),
            NextEvidence(why="The logs of PP0 TP1 and PP1 TP1.", command="kubectl logs prefill-1 > prefill-1.log"),
        ],
        excluded=[Excluded(signature="C7", because="the stop came 41 minutes after the start")],
        settings={"pp_size": 2, "tp_size": 2},
        **BASE,
    )


def healthy() -> Verdict:
    return Verdict(
        status="healthy",
        title="Every expected rank was working to the end of its log",
        ranks=Ranks(expected=2, seen=["PP0 TP0", "PP1 TP0"]),
        evidence_chain=[
            Link(
                claim="PP0 TP0 and PP1 TP0 formed the same 812 batches, in the same order.",
                citations=[cite("pp0.log", 9000), cite("pp1.log", 8990)],
            ),
            Link(claim="The last batch of each rank is within 2 s of the end of its log."),
        ],
        settings={"sglang_version": "0.5.23", "pp_size": 2, "tp_size": 1, "hicache_storage_backend": "mooncake"},
        **BASE,
    )


def out_of_scope() -> Verdict:
    return Verdict(
        status="out_of_scope",
        title="These are logs of vLLM, not of SGLang",
        evidence_chain=[
            Link(
                claim="The log names its engine.",
                citations=[
                    cite("engine.log", 3, "INFO 06-01 10:11:12 [api_server.py:1289] vLLM API server version 0.9.1")
                ],
            )
        ],
        settings={"engine": "vLLM"},
        **BASE,
    )


def gpu_fault() -> Verdict:
    return Verdict(
        status="other_cause",
        title="The GPU of PP1 TP0 failed; HiCache is a bystander",
        confidence="certain",
        confidence_because="the kernel logged Xid 79 for its bus address, 2 s before the first error",
        other_cause=OtherCause(id="gpu_fault", title="GPU fault: Xid 79, GPU has fallen off the bus"),
        ranks=Ranks(expected=2, seen=["PP0 TP0", "PP1 TP0"]),
        first_failing_rank="PP1 TP0",
        culprits=["PP1 TP0"],
        victims=["PP0 TP0"],
        evidence_chain=[
            Link(
                claim="The driver lost the GPU.",
                citations=[
                    cite("dmesg.txt", 2207, "NVRM: Xid (PCI:0000:8d:00): 79, pid=4711, GPU has fallen off the bus.")
                ],
            )
        ],
        actions=[
            Action(
                when="before_restart", do="Keep the kernel log and the driver's report.", command="nvidia-bug-report.sh"
            ),
            Action(when="now", do="Drain the node and have the GPU checked.", command="kubectl drain NODE"),
        ],
        excluded=[Excluded(signature="C1", because="no rank waits in a HiCache collective")],
        settings={"sglang_version": "0.5.20", "pp_size": 2, "tp_size": 1},
        **BASE,
    )


EVIL = (
    "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\u202egnp.exe [bold red]x[/] `code` @someone \x9b31m \udcff{{7*7}}"
)


def hostile() -> Verdict:
    name = "logs/\x1b[31mpp1</script><img src=x onerror=alert(2)>\u202e.log"
    bad = [cite(name, 3, f"{EVIL}\n</script><script>alert(3)</script>\r\nthird\tline", rank=EVIL, time=EVIL)]
    return Verdict(
        status="signature",
        signature="A\x1b[0m",
        form="A",
        title=EVIL,
        confidence="possible",
        confidence_because=EVIL,
        ranks=Ranks(expected=2, seen=[EVIL], missing=[EVIL + "2"]),
        first_failing_rank=EVIL,
        culprits=[EVIL],
        victims=[EVIL + "1"],
        first_divergence=FirstDivergence(
            stream=EVIL, ordinal=1, values={EVIL: EVIL, "漢字" * 30: "値" * 80}, citations=bad
        ),
        evidence_chain=[Link(claim=EVIL, citations=bad)],
        root_cause_pr=1,
        root_cause_state=EVIL,
        fixes=[Fix(pr=2, state=EVIL, first_release=EVIL, title=EVIL)],
        actions=[Action(when="now", do=EVIL, command=f"echo {EVIL}")],
        also=[Also(signature=EVIL, confidence="possible", because=EVIL, citations=bad)],
        other_incidents=[OtherIncident(time=EVIL, title=EVIL, citations=bad)],
        inventory=[InventoryRow(artifact=name, kind=EVIL, bytes=1, read="none", note=EVIL)],
        excluded=[Excluded(signature=EVIL, because=EVIL, citations=bad)],
        next_evidence=[NextEvidence(why=EVIL, command=EVIL)],
        path=[Step(node=EVIL, question=EVIL, answer="unknown", citations=bad)],
        settings={"sglang_version": EVIL, EVIL: EVIL, "pp_size": float("nan")},
        last_minute=[LastMinute(rank=EVIL, time=EVIL, text=EVIL, artifact=name, line=1)],
        rules_evaluated=[{"id": EVIL, "title": EVIL, "outcome": EVIL, "evidence": {EVIL: EVIL}}],
        **BASE,
    )
