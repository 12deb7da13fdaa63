"""The shape arithmetic: how many tokens a stage held and how many it received.

``shape '[T, -1, D]' is invalid for input of size S``: T tokens in this stage's batch, S / (local heads x D) tokens in
the hidden states that it was sent. Another whole number of tokens means a foreign batch; a difference of whole pages
means another cut of the prefix (a hit length), any other difference another set of requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

VIEW = re.compile(r"shape '\[(\d+), -1, (\d+)\]' is invalid for input of size (\d+)")
TENSORS = re.compile(
    r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension 0"
)
SIZE = re.compile(r"Size mismatch for shape#0\('?batch_size'?\): expected (\d+) but got (\d+)")
BROADCAST = re.compile(r"value tensor of shape \[(\d+), .*?cannot be broadcast to indexing result of shape \[(\d+),")
USUAL_HEADS = (64, 32, 16, 8, 128, 40, 20, 10, 96, 48, 24, 12, 28, 14, 7, 56, 4, 2, 1)

CREATE = """
CREATE OR REPLACE TABLE shape_error (
  artifact VARCHAR, line BIGINT, line_end BIGINT, rank VARCHAR, ts DOUBLE, quote VARCHAR, own BIGINT, head_dim BIGINT,
  size BIGINT, heads BIGINT, heads_known BOOLEAN, received BIGINT, delta BIGINT, page_size BIGINT,
  page_multiple BOOLEAN, foreign_batch BOOLEAN, too_small BOOLEAN, seen_upstream BOOLEAN, arithmetic VARCHAR)
"""


@dataclass(slots=True)
class Arithmetic:
    """What the numbers of one error say; None where they do not say it."""

    own: int
    head_dim: int | None
    size: int | None
    heads: int | None
    heads_known: bool
    received: int | None
    too_small: bool
    foreign: bool


def arithmetic(message: str, heads: list[int], upstream: set[int]) -> Arithmetic | None:
    """Read one error message. ``heads``: candidate local head counts, known ones first; ``upstream``: token counts
    of batches that another stage printed, which decide between candidates."""
    m = TENSORS.search(message) or SIZE.search(message)
    if m is not None:
        own, received = int(m[1]), int(m[2])
        return Arithmetic(own, None, None, None, False, received, False, own != received)
    m = BROADCAST.search(message)
    if m is not None:
        own, received = int(m[2]), int(m[1])
        return Arithmetic(own, None, None, None, False, received, False, own != received)
    m = VIEW.search(message)
    if m is None:
        return None
    own, dim, size = int(m[1]), int(m[2]), int(m[3])
    if own <= 0 or dim <= 0:
        return None
    if size < own * dim and size < 64 * dim:
        return Arithmetic(own, dim, size, None, False, None, True, False)
    whole = [(h, size // (h * dim)) for h in heads if size % (h * dim) == 0]
    known = whole[:1] if heads and whole and whole[0][0] == heads[0] else []
    printed = [(h, r) for h, r in whole if r in upstream]
    guess = printed or known or [(h, r) for h, r in whole if h in heads[:2]]
    if guess:
        return _with_heads(own, dim, size, *guess[0])
    usual = [(h, size // (h * dim)) for h in USUAL_HEADS if size % (h * dim) == 0 and size // (h * dim) != own]
    printed = [(h, r) for h, r in usual if r in upstream]
    if printed:
        return _with_heads(own, dim, size, *printed[0])
    # Without the head count one thing is still sure: no number of heads makes `own` tokens of these elements.
    return Arithmetic(own, dim, size, None, False, None, False, size % (own * dim) != 0)


def _with_heads(own: int, dim: int, size: int, heads: int, received: int) -> Arithmetic:
    return Arithmetic(own, dim, size, heads, True, received, False, received != own)


def local_heads(settings: dict[str, Any], models: list[dict[str, Any]], model_class: str | None) -> list[int]:
    """Candidate local query-head counts, the likeliest first: the model's heads over the attention TP size, then
    undivided (indexers and MLA rope parts are replicated)."""
    name = f"{settings.get('model_path') or ''} {model_class or ''}"
    entry = next((m for m in models if re.search(m["match"], name)), None)
    if entry is None:
        return []
    tp = _whole(settings.get("tp_size")) or 1
    cp = _whole(settings.get("attn_cp_size")) or 1
    dp = (_whole(settings.get("dp_size")) or 1) if str(settings.get("enable_dp_attention")) == "True" else 1
    attn_tp = max(1, tp // (cp * dp))
    out: list[int] = []
    for total in entry["heads"]:
        for h in (total // attn_tp, total):
            if h and h not in out:
                out.append(h)
    return out


def derive(store: Store, settings: dict[str, Any], models: list[dict[str, Any]]) -> None:
    """Fill the table ``shape_error`` from the exceptions of the store."""
    store.con.execute(CREATE)
    errors = store.rows(
        "SELECT * FROM exception WHERE message LIKE '%hape%' OR message LIKE '%size of tensor%' ORDER BY artifact, line"
    )
    model_class = store.value("SELECT (fields->>'model_class') FROM log WHERE kind = 'load_weight_end' LIMIT 1")
    heads = local_heads(settings, models, model_class)
    page = _whole(settings.get("page_size"))
    rows = []
    for e in errors:
        upstream = {
            r["new_token"]
            for r in store.rows(
                "SELECT DISTINCT new_token FROM batch "
                "WHERE kind = 'prefill' AND new_token > 8 AND rank IS DISTINCT FROM ?",
                [e["rank"]],
            )
        }
        a = arithmetic(e["message"], heads, upstream)
        if a is None:
            continue
        delta = abs(a.received - a.own) if a.received is not None else None
        multiple = (
            None
            if not delta or not page or page < 2 or not (a.heads_known or a.head_dim is None)
            else delta % page == 0
        )
        copied = ("artifact", "line", "line_end", "rank", "ts")
        rows.append(
            {name: e[name] for name in copied}
            | {
                "quote": f"{e['type']}: {e['message']}"[:400],
                "own": a.own,
                "head_dim": a.head_dim,
                "size": a.size,
                "heads": a.heads,
                "heads_known": a.heads_known,
                "received": a.received,
                "delta": delta,
                "page_size": page,
                "page_multiple": multiple,
                "foreign_batch": a.foreign,
                "too_small": a.too_small,
                "seen_upstream": a.received in upstream,
                "arithmetic": _say(a),
            }
        )
    store.fill("shape_error", rows)


def _say(a: Arithmetic) -> str:
    if a.too_small:
        return f"{a.size} elements are far less than {a.own} tokens of one head of {a.head_dim}: not a foreign batch"
    if a.received is None:
        if a.foreign:
            return f"{a.size} elements are not {a.own} tokens with any number of heads of {a.head_dim}"
        heads = (a.size or 0) // (a.own * (a.head_dim or 1))
        return f"{a.size} elements are {a.own} tokens of {heads} heads of {a.head_dim}: the model's head count decides"
    if a.size is None:
        return f"{a.own} against {a.received}"
    return f"{a.size} / ({a.heads} x {a.head_dim}) = {a.received} tokens arrived, {a.own} were expected"


def _whole(value: Any) -> int | None:
    try:
        return int(str(value))
    except (TypeError, ValueError):
        return None
