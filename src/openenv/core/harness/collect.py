"""`openenv.rollouts.collect_runner` under its older name, with the types that it uses."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "METADATA_FILENAME",
    "README_FILENAME",
    "RESULTS_FILENAME",
    "CollectResult",
    "CollectRunner",
    "EpisodeRecord",
    "HarnessAdapter",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "LLMClient",
    "ModelStep",
    "ModelStepResult",
    "ResourceSessionFactory",
    "RolloutSerializer",
    "Tool",
    "VerifyResult",
    "build_dataset_readme",
    "build_model_step",
    "push_to_hf_hub",
]

__getattr__, __dir__ = take(__name__, __all__)
