"""Verdicts made by hand that name a signature, as the renderers meet them."""

from __future__ import annotations

from typing import Any

from hicache_doctor.signatures.verdict import (
    Action,
    Also,
    Citation,
    Excluded,
    FirstDivergence,
    Fix,
    InventoryRow,
    LastMinute,
    Link,
    NextEvidence,
    OtherIncident,
    Ranks,
    Step,
    Verdict,
)

BASE: dict[str, Any] = {"tool_version": "0.1.0", "knowledge_as_of": "2026-11-30"}
SHAPE = "RuntimeError: shape '[3013, -1, 128]' is invalid for input of size 8192000"


def cite(artifact: str, line: int | None = None, quote: str | None = None, **more: Any) -> Citation:
    return Citation(artifact=artifact, line=line, quote=quote, **more)


def certain_a1() -> Verdict:
    pp1, pp0 = "crash.dump!logs/pp1.log", "crash.dump!logs/pp0.log"
    who = {"rank": "PP1 TP0", "time": "2026-05-11T03:12:44.812Z"}
    return Verdict(
        status="signature",
        signature="A1",
        form="A",
        title="Every stage drained write and load acks by its own copy events, so the prefixes of a batch differed",
        confidence="certain",
        confidence_because="literal text, version range and configuration agree",
        ranks=Ranks(expected=4, seen=["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]),
        first_failing_rank="PP1 TP0",
        culprits=["PP1 TP0"],
        victims=["PP0 TP0", "PP0 TP1", "PP1 TP1"],
        first_divergence=FirstDivergence(
            stream="Prefill batch",
            ordinal=4711,
            values={"PP0 TP0": "#new-seq 1, #new-token 1000, #cached-token 2048", "PP1 TP0": "#new-token 3013"},
            citations=[cite(pp0, 9120), cite(pp1, 807)],
        ),
        evidence_chain=[
            Link(
                claim="PP1 TP0 failed first: its batch has 3013 tokens, the hidden states it received have 1000.",
                citations=[cite(pp1, 812, SHAPE, line_end=861, **who)],
            ),
            Link(
                claim="The difference, 2013 tokens, is no multiple of page_size 64: a foreign microbatch.",
                citations=[cite(pp1, 14, "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', page_size=64)")],
            ),
            Link(
                claim="PP0 and PP1 formed batch 4711 with different cached prefixes.",
                citations=[
                    cite(pp0, 9120, "[2026-05-11 03:12:44 PP0 TP0] Prefill batch, #new-seq: 1, #new-token: 1000"),
                    cite(pp1, 807, "[2026-05-11 03:12:44 PP1 TP0] Prefill batch, #new-seq: 1, #new-token: 3013"),
                ],
            ),
            Link(claim="SGLang 0.5.12 drains acks by each stage's own events.", citations=[cite(pp1, 14)]),
        ],
        root_cause_pr=27285,
        root_cause_state="merged",
        fixes=[
            Fix(
                pr=27285, state="merged", first_release="0.5.13", in_your_release=False, title="Sync HiCache ack counts"
            ),
            Fix(pr=28916, state="merged", first_release="0.5.15", in_your_release=False, title="Bound pp-sync sends"),
        ],
        actions=[
            Action(when="before_restart", do="Keep the logs of all ranks.", command="cp -a /var/log/sglang incident/"),
            Action(when="now", do="Run without HiCache until the upgrade: drop --enable-hierarchical-cache."),
            Action(
                when="upgrade",
                do="Upgrade to 0.5.15 or later; 0.5.13 has the fix but leaks host memory on PP0 (signature D).",
                command="pip install 'sglang==0.5.15'",
            ),
        ],
        excluded=[
            Excluded(signature="A2", because="both stages print the same host capacity", citations=[cite(pp0, 88)]),
            Excluded(signature="A3", because="no storage backend is set", citations=[cite(pp1, 14)]),
            Excluded(signature="A5", because="no request timeout is set in the environment"),
        ],
        settings={
            "sglang_version": "0.5.12",
            "pp_size": 2,
            "tp_size": 2,
            "enable_hierarchical_cache": True,
            "hicache_storage_backend": None,
            "page_size": 64,
        },
        last_minute=[
            LastMinute(rank=rank, time=f"2026-05-11T03:12:{s}Z", text=text, artifact=log, line=n)
            for rank, s, text, log, n in [
                ("PP0 TP0", 41, "Prefill batch, #new-seq: 2, #new-token: 2048, #cached-token: 0", pp0, 9101),
                ("PP1 TP0", 41, "Prefill batch, #new-seq: 2, #new-token: 2048, #cached-token: 0", pp1, 790),
                ("PP0 TP0", 43, "Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0", pp0, 9110),
                ("PP1 TP1", 43, "Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0", pp1, 799),
                ("PP0 TP0", 44, "Prefill batch, #new-seq: 1, #new-token: 1000, #cached-token: 2048", pp0, 9120),
                ("PP1 TP0", 44, "Prefill batch, #new-seq: 1, #new-token: 3013, #cached-token: 0", pp1, 807),
                ("PP0 TP1", 42, "Decode batch, #running-req: 12, #token: 48211", pp0, 9105),
                ("PP1 TP1", 44, "Scheduler hit an exception", pp1, 870),
            ]
        ],
        inventory=[
            InventoryRow(artifact=pp0, kind="sglang_log", bytes=2_311_004, read="all"),
            InventoryRow(artifact=pp1, kind="sglang_log", bytes=204_118, read="all"),
            InventoryRow(
                artifact="crash.dump!core.4711",
                kind="core",
                bytes=81_604_378_624,
                read="none",
                note="no symbols for it",
            ),
        ],
        path=[
            Step(
                node="1", question="Is there a Python traceback on some rank?", answer="yes", citations=[cite(pp1, 812)]
            ),
            Step(node="2.4", question="Is it a shape mismatch on a later stage?", answer="yes"),
            Step(node="2.4.6", question="Is a storage backend set?", answer="no", citations=[cite(pp1, 14)]),
            Step(node="2.4.9", question="Was there eviction pressure?", answer="unknown"),
        ],
        rules_evaluated=[
            {
                "id": "A1",
                "title": "acks drained by own events",
                "outcome": "matched",
                "evidence": {"shape_error": "yes", "version_before_0_5_13": "yes", "storage_backend": "no"},
            },
            {
                "id": "A2",
                "title": "unequal host capacity",
                "outcome": "excluded",
                "evidence": {"capacity_differs": "no", "memory_pressure": "unknown"},
            },
        ],
        **BASE,
    )


def likely_a3() -> Verdict:
    log = "bundle.tar.gz!prefill-7f9c6d/logs/stage1/sglang-prefill-pp1-tp0-2026-08-02T11-20-31.attempt-0.log.zst"
    return Verdict(
        status="signature",
        signature="A3",
        form="A",
        title="The L3 hit length was read locally: one stage settled 896 tokens, the other 0",
        confidence="likely",
        confidence_because="the text and the version range agree; the storage backend is not known from these files",
        ranks=Ranks(expected=2, seen=["PP0 TP0", "PP1 TP0"]),
        first_failing_rank="PP1 TP0",
        culprits=["PP1 TP0"],
        victims=["PP0 TP0"],
        first_divergence=FirstDivergence(
            stream="settled prefetch length",
            ordinal=212,
            values={"PP0 TP0": "rid 5f0c… settled 896", "PP1 TP0": "rid 5f0c… settled 0"},
            citations=[cite("pp0.log", 4410), cite(log, 4398)],
        ),
        evidence_chain=[
            Link(
                claim="PP1 TP0 failed first, in its attention.",
                citations=[
                    cite(
                        log,
                        4402,
                        "RuntimeError: shape '[1024, -1, 128]' is invalid for input of size 1048576",
                        rank="PP1 TP0",
                        time="2026-08-02 11:41:07",
                    )
                ],
            ),
            Link(
                claim="Request 5f0c… had 896 tokens loaded on PP0 and 0 on PP1; 896 is 14 pages of 64.",
                citations=[
                    cite("pp0.log", 4410, "HiCache prefetch success req=5f0c completed=896 matched=0 loaded=896"),
                    cite(log, 4398, "HiCache prefetch success req=5f0c completed=0 matched=0 loaded=0"),
                ],
            ),
        ],
        root_cause_pr=27010,
        root_cause_state="merged",
        fixes=[Fix(pr=27010, state="merged", first_release="0.5.19", in_your_release=False)],
        actions=[
            Action(when="now", do="Turn the L3 backend off: drop --hicache-storage-backend."),
            Action(when="upgrade", do="Upgrade to 0.5.19 or later."),
        ],
        also=[
            Also(
                signature="D",
                confidence="possible",
                because="the release leaks host memory on PP0; no RSS series was given",
            )
        ],
        excluded=[Excluded(signature="A1", because="0.5.17 contains #27285")],
        next_evidence=[
            NextEvidence(
                why="The launch command shows whether a storage backend is set.",
                command="kubectl get pod POD -o jsonpath='{.spec.containers[0].args}'",
            )
        ],
        settings={"sglang_version": "0.5.17", "pp_size": 2, "tp_size": 1},
        inventory=[
            InventoryRow(artifact="pp0.log", kind="sglang_log", bytes=905_001, read="all"),
            InventoryRow(artifact=log, kind="sglang_log", bytes=99_412, read="part", note="cut off at line 4460"),
        ],
        **BASE,
    )


def open_b2() -> Verdict:
    return Verdict(
        status="signature",
        signature="B2",
        form="B",
        title="A backup was granted on a subset of the ranks, so the ack queues have different lengths",
        confidence="likely",
        confidence_because="text and configuration agree; no probe data show the submissions",
        ranks=Ranks(
            expected=64,
            seen=[f"PP{p} TP{t}" for p in range(8) for t in range(8) if (p, t) != (7, 7)],
            missing=["PP7 TP7"],
        ),
        first_failing_rank="PP3 TP2",
        culprits=["PP3 TP2", "PP3 TP3"],
        victims=[f"PP{p} TP{t}" for p in (0, 1, 2) for t in range(8)],
        evidence_chain=[
            Link(
                claim="PP3 TP2 popped an ack that it never submitted.",
                citations=[
                    cite(
                        "pp3.log",
                        120031,
                        "IndexError: pop from empty list\n  at hiradix_cache.py:611\n  ack_write_queue.pop(0)",
                        line_end=120033,
                        rank="PP3 TP2",
                    )
                ],
            ),
            Link(
                claim="hicache_host_used_tokens differs between PP0 TP0 and PP3 TP2.",
                citations=[cite("metrics.prom", None, "sglang:hicache_host_used_tokens 7621952", record=4)],
            ),
        ],
        root_cause_pr=31425,
        root_cause_state="open",
        actions=[Action(when="now", do="Raise --hicache-ratio, so that the host pool does not run full.")],
        next_evidence=[
            NextEvidence(
                why="The logs of PP7 TP7 are missing.",
                command="kubectl logs prefill-7 -c sglang --previous > pp7-tp7.log",
            )
        ],
        other_incidents=[OtherIncident(time="2026-09-01 08:00:11", title="host out of memory on node 3")],
        settings={"sglang_version": "0.5.21", "pp_size": 8, "tp_size": 8, "hicache_size": 200},
        **BASE,
    )
