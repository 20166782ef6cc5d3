"""Small repositories with a planted fault: find it, repair it, and pass the hidden tests."""

from .client import RepoRepairEnv
from .models import RepoRepairAction, RepoRepairObservation, RepoRepairState

__all__ = ["RepoRepairAction", "RepoRepairEnv", "RepoRepairObservation", "RepoRepairState"]
