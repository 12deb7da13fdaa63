"""What core files say of the end: ``native_death`` (a process that met a signal by itself) and ``gloo_abort``.

A message that is longer than the buffer which waits for it makes gloo abort the process from the thread that reads the
socket (no Python exception, SIGABRT): a call was skipped elsewhere, and the rank that dies is a victim of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

GLOO_ABORT = """
CREATE OR REPLACE VIEW gloo_abort AS
SELECT s.artifact, coalesce(f.at_line, s.line) AS line, s.line_end, s.record, s.rank, s.pid, s.ts, f.function AS quote
FROM stack s JOIN frame f ON f.stack = s.id
WHERE s.source = 'core' AND f.native AND f.function LIKE 'gloo::transport::tcp::Pair::prepareRead%'
  AND EXISTS (SELECT 1 FROM frame a WHERE a.stack = s.id AND a.depth < f.depth AND a.native AND a.function = 'abort')
"""
NATIVE_DEATH = """
CREATE OR REPLACE VIEW native_death AS
SELECT d.artifact, d.line, d.rank, d.pid, d.ts, (d.labels->>'signal') AS signal, (d.labels->>'quote') AS quote
FROM sample d
WHERE d.name = 'death_signal' AND (d.labels->>'own') = 'true'
  AND NOT EXISTS (SELECT 1 FROM gloo_abort g WHERE g.artifact = d.artifact AND g.pid IS NOT DISTINCT FROM d.pid)
"""


def derive(store: Store) -> None:
    """Create both views."""
    store.flush()
    store.con.execute(GLOO_ABORT)
    store.con.execute(NATIVE_DEATH)
