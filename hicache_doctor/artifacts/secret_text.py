"""Which configuration keys hold secrets; their values are masked (``***``) before a row is made of them."""

from __future__ import annotations

import re

from hicache_doctor.artifacts.secrets import scrub

MASK = "***"

_ALWAYS = re.compile(
    r"passw(?:or)?d|passphrase|(?<!no)secret|api_?key|access_?key|private_?key|admin_?key|account_?key|auth_?key|"
    r"credential|authorization|bearer|(?:access|auth|api|hf|hub|refresh|session|bot|github|gitlab)_?tokens?$",
    re.I,
)
_TOKEN = re.compile(r"(?:^|_)token(?:_|$)")
# SGLang's own words with "token" in them, which are counts, ids, maps and shares.
_PLAIN_TOKEN = re.compile(
    r"(?:per|new|cached|full|pending|num|max|min|draft|special|used|total|eos|bos|pad|stop|mask)_token|"
    r"token_(?:usage|map|distribution|threshold|ratio|count|counts|ids?|level|size|len|length|capacity|budget|step|pool)"
)
_EMPTY = frozenset({"", "none", "null", "true", "false", "~", "***", '""', "''"})


def is_secret(key: str) -> bool:
    """True when a key's value must not be shown: passwords, tokens, API and access keys, credentials."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip().lstrip("-")).lower().replace("-", "_").replace(".", "_")
    if _ALWAYS.search(name):
        return True
    return _TOKEN.search(name) is not None and _PLAIN_TOKEN.search(name) is None


def masked(key: str, value: str) -> str:
    """The value as it may be shown: ``***`` for a secret key (unless it is empty or None), else without secrets."""
    if is_secret(key):
        return value if value.strip().lower() in _EMPTY else MASK
    return scrub(value)
