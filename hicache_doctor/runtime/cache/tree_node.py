"""A node of the radix tree, and what a lookup returns."""

from __future__ import annotations


class TreeNode:
    """A run of pages. ``value`` are device pages (None: evicted), ``host_value`` host pages (None: not backed up)."""

    __slots__ = (
        "children",
        "hashes",
        "hit_count",
        "host_ref",
        "host_value",
        "in_device_heap",
        "in_host_heap",
        "key",
        "last_access",
        "lock_ref",
        "parent",
        "resident_children",
        "value",
    )

    def __init__(self, hashes: list[int], parent: TreeNode | None) -> None:
        self.hashes = hashes
        self.key = hashes[-1] if hashes else 0
        self.parent = parent
        self.children: dict[int, TreeNode] = {}
        self.value: list[int] | None = None
        self.host_value: list[int] | None = None
        self.lock_ref = 0
        self.host_ref = 0
        self.hit_count = 0
        self.last_access = 0
        self.resident_children = 0
        self.in_device_heap = False
        self.in_host_heap = False


class Match:
    """What a prefix lookup found: device pages from the start, then pages that only the host has."""

    __slots__ = ("host_pages", "last_device_node", "last_host_node", "pages")

    def __init__(self, pages: list[int], last_device: TreeNode, last_host: TreeNode, host_pages: int) -> None:
        self.pages = pages
        self.last_device_node = last_device
        self.last_host_node = last_host
        self.host_pages = host_pages
