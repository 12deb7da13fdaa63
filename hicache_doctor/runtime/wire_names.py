"""The numbers by which both worlds record what goes over the wire: groups, call sites, operations, member lists."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_doctor.probes.kinds import Group, Op, Site
from hicache_doctor.runtime.world import mix

GROUPS: dict[str, int] = {
    "tp": int(Group.TP),
    "cp": int(Group.CP),
    "pp": int(Group.PP),
    "fwd": int(Group.FWD),
    "hits.tp": int(Group.HITS_TP),
    "hits.cp": int(Group.HITS_CP),
    "hits.pp": int(Group.HITS_PP),
    "acks.tp": int(Group.ACKS_TP),
    "acks.cp": int(Group.ACKS_CP),
    "acks.pp": int(Group.ACKS_PP),
    "mlp": int(Group.MLP_SYNC),
    "world": int(Group.WORLD),
}
"""Names the protocol gives its groups; any other is ``Group.OTHER`` (0)."""
SITES: dict[str, int] = {site.name.lower(): int(site) for site in Site}
"""A label is the lower-case name of a call site; any other is ``Site.OTHER`` (0)."""
OPS: dict[str, int] = {"min": int(Op.MIN), "max": int(Op.MAX), "sum": int(Op.SUM)}


def members_key(ranks: Sequence[int]) -> int:
    """One 64-bit number for a list of ranks in its order."""
    key = len(ranks)
    for rank in ranks:
        key = mix(key, rank)
    return key
