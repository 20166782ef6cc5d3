"""Python in a sandbox: run code, keep files, and write a function that passes hidden tests."""

from .client import PythonSandboxEnv
from .models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState

__all__ = ["PythonSandboxAction", "PythonSandboxEnv", "PythonSandboxObservation", "PythonSandboxState"]
