"""What secrets and prompts look like in text: trigger words, names of keys, and shapes of well-known tokens.

Every pattern is linear: no nested repeats, no unbounded prefix before a word. ``TRIGGERS`` must hold a literal of every
pattern here; a test plants each shape and fails if its trigger is missing.
"""

from __future__ import annotations

import re


def _cases(*words: str) -> list[str]:
    return [form for word in words for form in dict.fromkeys((word, word.upper(), word.capitalize(), word.title()))]


# ``token`` alone stands in every batch line (``#new-token: 2048, token usage: 0.31``): only what may hold a secret.
_TOKEN = [
    w
    for name in ("token", "TOKEN", "Token")
    for w in (
        *(name + after for after in ("=", '"', "'", "\\", " =", " :", "_")),
        *(before + name + ":" for before in (" ", "\t", "\n", "_", '"', "'", ".", "?", "&")),
    )
]
_TOKEN += [
    "TOKEN",
    "token\n",
    "-token ",
    "-token=",
    "-TOKEN:",
    "-Token:",
    "-token: ey",
    "uth-token:",
    "ess-token:",
    "api-token:",
]
_TOKEN += ["ault-token:", "ity-token:", "hf-token:", "ret-token:", "ub-token:", "lab-token:"]
_PROMPT = [
    name + after
    for name in ("prompt", "prompts", "Prompt", "PROMPT", "text", "content", "messages", "arguments", "input")
    for after in ("=", '"', "'", "\\", ":", " =", " :")
    if (name, after) != ("text", ":")
]
TRIGGERS: list[str] = [
    *_cases("key", "secret", "passw", "passphrase", "credential", "auth", "bearer", "cookie", "pwd", "_pass", "-pass"),
    *("PassW", "apiKey", "ApiKey", "onnection", "ONNECTION", "SharedAccess", "sharedaccess"),
    *_TOKEN,
    *_PROMPT,
    *("_ids", "embeds", "-----BEGIN", "base64,", "://", "ssh-", "ecdsa-", "curl ", "sshpass", "login "),
    *("sig=", "Sig=", "signature=", "Signature=", "code=", "sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "AKIA", "ASIA", "eyJ", "xox", "xapp-", "AIza", "ya29.", "npm_", "pypi-", "nvapi-"),
    *("hooks.slack.com", "SG.", "dckr_pat_"),
]
EDGE_WORDS = frozenset(("token", "Token"))
"""Triggers at the very beginning or end of a line (``token: x``, ``name: hf_token``)."""

_KEYS = (
    r"(?:api|access|secret|private|account|encryption|signing|shared|master|service|auth|license|ssh|deploy|webhook"
    r"|client|subscription|root|admin|bucket)[ _-]?(?:access[ _-]?)?key"
)
_SECRETS = (
    rf"{_KEYS}|secret|passw(?:or)?d|passphrase|(?<![a-z])pwd|[_-]pass|credentials?|connection[_-]?string"
    r"|shared[ _-]?access[ _-]?signature|(?<![a-z])auth"
)
_TAIL = r"s?(?:[_-]?(?:id|value|base64|b64|base|plain(?:text)?|\d{1,3}))?"
_QUOTE = r"""\\*["']"""
_SIGN = r"\s{0,8}(?:=>|:=|[:=])(?!:)\s{0,8}"
_PAIR = rf"""(?:{_QUOTE})?[ \t]{{0,8}},?\s{{0,80}}(?:{_QUOTE})?value(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}}"""

KEY = re.compile(
    rf"""
    (?:
        (?P<header> authorization | cookie )
      | (?P<query> (?<=[?&;]) (?: [\w-]{{0,24}}sig(?:nature)? | key | code | [\w-]{{0,24}}credential ) )
      | (?P<secret> (?:{_SECRETS}) {_TAIL} )
      | (?P<token> token (?:[_-]?(?:value|secret|\d{{1,3}}))? )
      | (?P<ids> (?:input|output|fill|prompt|token|unpadded_input)_(?:token_)?ids | (?<![a-z])input_embeds )
      | (?P<prompt> (?<![A-Za-z0-9-]) (?: prompts? | text | content | messages | arguments ) | (?<=")input(?=\\*") )
    )
    (?: (?P<sign> (?:{_QUOTE})? {_SIGN} )
      | (?P<pair> {_PAIR} )
      | (?P<listed> {_QUOTE} \s{{0,8}} , \s{{0,8}} )
      | (?P<space> [ \t]{{1,8}} )
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)

NOTHING_SECRET = re.compile(
    r"""
    [bruf]{0,2} (?P<q>\\*["']) \s* (?:\*\*\*|…)? (?P=q)
    | \*\*\* | \[["']?\*\*\* | \[… | \[\s*\] | \{\s*\} | [|>][+-]?\d?[ \t]*(?:\r?\n|$)
    | (?:None|null|nil|true|false|undefined)(?![\w.-])
    | <(?:unset|none|redacted|hidden|set)>
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A value that gives nothing away: absent, empty, a switch, or dropped already."""

HARMLESS_TOKEN = re.compile(
    r"""(?:\#|(?:^|[^a-z])(?:new|cached|pending|full|swa|total|num|max|min|bos|eos|pad|cls|sep|unk|mask|stop|special|image
    |video|audio|next|last|first|per|draft|input|output|prompt|out|added|think|begin|end|start|additional|chunk|decode
    |prefill|spec|accept|hot|cold|inter|sampled|generated|mm|placeholder|reasoning|extend)[ _-]?)$""",
    re.IGNORECASE | re.VERBOSE,
)
HARMLESS_IDS = re.compile(r"(?:stop|eos|bos|pad|special|bad|allowed)_$", re.IGNORECASE)
NUMBER = re.compile(r"-?\d{1,10}(?:\.\d{1,12})?(?:[a-z%/]{0,6})?(?![\w-])(?!\.\w)")

LEADS = (
    *("api", "access", "secret", "private", "account", "encryption", "signing", "shared", "master", "service", "auth"),
    *(
        "license",
        "ssh",
        "deploy",
        "webhook",
        "client",
        "subscription",
        "root",
        "admin",
        "bucket",
        "passw",
        "passphrase",
    ),
    *("pwd", "_pass", "-pass", "credential", "connection", "cookie", "token", "input", "output", "fill_", "prompt"),
    *("unpadded_", "text", "content", "messages", "arguments", "?", "&", ";"),
)
"""What a match of ``KEY`` begins with, in lower case (the last three: what it follows)."""

_B = r"(?<![A-Za-z0-9])"
_SHAPES: tuple[tuple[str, str, str], ...] = (
    ("://", r"""(://)[^\s/?\#'"<>\\]+@""", r"\1***@"),
    ("earer EARER", r"(?i)\b(bearer\s{1,4})(?=[\w.~+/=-]*[\d._~+/=-]|[\w.~+/=-]{16})[\w.~+/=-]{6,}", r"\1***"),
    ("sk-", _B + r"sk-[A-Za-z0-9_-]{6,}", "***"),
    ("hf_", _B + r"hf_(?:(?=[A-Za-z0-9]{0,60}[A-Z0-9])[A-Za-z0-9]{6,}|[A-Za-z]{30,})", "***"),
    ("ghp_ gho_ ghu_ ghs_ ghr_", _B + r"gh[pousr]_[A-Za-z0-9]{6,}", "***"),
    ("github_pat_ glpat- dckr_pat_", _B + r"(?:github_pat_\w{6,}|glpat-[\w-]{8,}|dckr_pat_[\w-]{8,})", "***"),
    ("AKIA ASIA", _B + r"(?:AKIA|ASIA)[A-Z0-9]{12,}", "***"),
    ("eyJ", _B + r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,4}", "***"),
    ("xox xapp-", _B + r"(?:xox[a-z]|xapp)-[A-Za-z0-9-]{6,}", "***"),
    ("AIza ya29.", _B + r"(?:AIza[\w-]{10,}|ya29\.[\w-]{10,})", "***"),
    ("npm_ pypi- nvapi-", _B + r"(?:npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|nvapi-[\w-]{10,})", "***"),
    ("SG.", _B + r"SG\.[\w-]{16,}\.[\w-]{16,}", "***"),
    ("hooks.slack.com", r"(hooks\.slack\.com/(?:services|workflows)/)[\w/-]+", r"\1***"),
    ("ssh- ecdsa-", r"((?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w{1,20})\s{1,4})AAAA[\w+/=]+", r"\1***"),
    ("base64,", r"(data:[\w/+.-]{1,60};base64,)[\w+/=-]+", r"\1***"),
    ("curl ", r"""(\bcurl\b[^\n]{0,400}?\s(?:-u|--user)[ =]?['"]?)(?!\*\*\*)[^\s'"]+""", r"\1***"),
    ("sshpass", r"(\bsshpass\s{1,4}-p\s{0,4})(?!\*\*\*)\S+", r"\1***"),
    ("login ", r"(\blogin\s{1,4}\S{1,200}\s{1,4}password\s{1,4})(?!\*\*\*)\S+", r"\1***"),
)
SHAPES = [(tuple(literals.split()), re.compile(pattern), instead) for literals, pattern, instead in _SHAPES]
"""Tokens that are known by their look: literals of which one must be there, the pattern, and what to put instead."""

_BLOCK_NAME = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
KEY_BLOCK_BEGIN = re.compile(rf"-----BEGIN {_BLOCK_NAME}")
KEY_BLOCK_END = re.compile(rf"-----END {_BLOCK_NAME}")
KEY_BLOCK = re.compile(rf"(?<=-----BEGIN )({_BLOCK_NAME})(.*?)(?=-----END {_BLOCK_NAME}|\Z)", re.DOTALL)
BASE64_LINE = re.compile(r"[A-Za-z0-9+/=:,-]+")

_SECRET_NAME = rf"[\w.-]{{0,80}}?(?:{_SECRETS}|token|cookie){_TAIL}"
NAME_OF_PAIR = re.compile(rf"(?i)\b(?:name|key)['\"]?\s{{0,4}}[:=]\s{{0,4}}['\"]?{_SECRET_NAME}['\"]?,?\s*$")
VALUE_OF_PAIR = re.compile(r"(?i)(?<![\w-])(value['\"]?\s{0,8}[:=]\s{0,8})(\S.*)$", re.DOTALL)
SCALAR_MARK = re.compile(r"[|>][+-]?\d?\s*")
BARE_OPTION = re.compile(rf"(?i)--{_SECRET_NAME}['\"]?,?\s*$")
LIST_ITEM = re.compile(r"(\s*(?:-\s+)?['\"]?)(\S.*)$", re.DOTALL)
BLOCK_SCALAR = re.compile(rf"(?i)^( *)(?:- )?['\"]?{_SECRET_NAME}['\"]?:\s{{0,4}}[|>][+-]?\d?\s*$")
OPEN_IDS = re.compile(
    r"(?i)(?:_ids|embeds)['\"]?\s{0,4}[:=]\s{0,4}[\w.]{0,12}\(?(?:'\w',\s?)?\[[\s\d,.\[…]*(?:ids dropped\]?)?\s*$"
)
IDS_GO_ON = re.compile(r"\s*(?P<ids>[\d\s,.\[\]e+-]*[\d\]])")
