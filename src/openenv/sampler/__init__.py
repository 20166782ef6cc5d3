"""Tasks shared out to sessions: each once, also after a crash."""

from .sampler import TaskSampler
from .task import SampledTask

__all__ = ["SampledTask", "TaskSampler"]
