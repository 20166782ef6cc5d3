"""Python in a sandbox: code, files, and a function to be written that passes hidden tests."""

from .client import PythonSandboxEnv
from .models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState

__all__ = ["PythonSandboxAction", "PythonSandboxEnv", "PythonSandboxObservation", "PythonSandboxState"]
