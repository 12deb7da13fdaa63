"""All hand-made verdicts by name."""

from __future__ import annotations

from collections.abc import Callable

from report_others import gpu_fault, healthy, hostile, out_of_scope, undetermined
from report_signatures import certain_a1, likely_a3, open_b2

from hicache_doctor.signatures.verdict import Verdict

VERDICTS: dict[str, Callable[[], Verdict]] = {
    f.__name__: f for f in (certain_a1, likely_a3, open_b2, undetermined, healthy, out_of_scope, gpu_fault, hostile)
}
