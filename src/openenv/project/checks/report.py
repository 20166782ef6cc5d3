"""What all checks of one target saw."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, computed_field

from .finding import Finding, Outcome

__all__ = ["Report"]


class Report(BaseModel):
    """What `openenv validate` prints, and writes with `--json`.

    Attributes:
        target: What was looked at: a folder or an address.
        findings: In the order in which the checks ran.
        passed: Whether none of them failed.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    findings: list[Finding]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not any(finding.outcome is Outcome.FAIL for finding in self.findings)
