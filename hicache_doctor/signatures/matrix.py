"""What each known incident must be diagnosed as, as written in ``rules/matrix.yaml`` before any run."""

from __future__ import annotations

from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from hicache_doctor.errors import RuleError
from hicache_doctor.shipped import rules_dir
from hicache_doctor.signatures.load import LOADER
from hicache_doctor.signatures.model import Strict


class Row(Strict):
    """One scenario of the reference runtime and the verdict that it must get; where the schedule decides which rank is
    first, ``first_rank`` lists those that it may be."""

    scenario: str
    status: Literal["signature", "healthy", "undetermined"] = "signature"
    signature: str | None = None
    root_cause_pr: int | None = None
    first_rank: str | list[str] | None = None
    confidence: Literal["certain", "likely", "possible"] = "certain"
    culprits: list[str] = Field(default_factory=list)
    also: list[str] = Field(default_factory=list)
    parts_in: str | None = None
    fixes: list[int] = Field(default_factory=list)
    real: bool = False
    measured: str | None = None


class Matrix(Strict):
    """All rows, and the signatures that no scenario makes, with the reason."""

    rows: list[Row]
    not_reproduced: dict[str, str]

    def makes(self, signature: str) -> list[str]:
        """The scenarios whose verdict is this signature."""
        return [row.scenario for row in self.rows if row.signature == signature]

    def reproducible(self, signature: str) -> dict[str, Any]:
        """For a list of rules: which scenarios make it, or why none does."""
        made = self.makes(signature)
        return {"reproduced_by": made, "not_reproduced": None if made else self.not_reproduced.get(signature)}


def load_matrix() -> Matrix:
    """The shipped matrix.

    Raises:
        RuleError: the file is wrong.
    """
    path = rules_dir() / "matrix.yaml"
    try:
        return Matrix.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER))
    except (OSError, yaml.YAMLError, ValidationError) as e:
        raise RuleError(str(path), str(e).splitlines()[0]) from None
