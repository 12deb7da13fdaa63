"""The errors that a user may see: one clear line each, and the exit code that belongs to it.

    DoctorError                 70  our own failure
    ├── UsageError               2  the command line asks for something impossible
    ├── InputError               3  an artefact or database cannot be read
    └── RuleError                1  a rule, vocabulary or knowledge file is wrong (file:line:column)

Only the CLI prints them. Texts say what, where (file, line or offset) and what to do.
"""

from __future__ import annotations


class DoctorError(Exception):
    """Base of every error that is shown to the user as one line."""

    exit_code = 70


class UsageError(DoctorError):
    """The command line asks for something impossible."""

    exit_code = 2


class InputError(DoctorError):
    """An artefact or database cannot be read."""

    exit_code = 3


class RuleError(DoctorError):
    """A rule file is wrong; ``where`` is ``file:line:column``."""

    exit_code = 1

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what
