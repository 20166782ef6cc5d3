"""A server that misbehaves on request, for tests of launchers: `python -m openenv.testing.misbehaving`.

Behaviours:
    serve: Serves an environment that repeats messages, at the address in the variables HOST and PORT.
    slow-start: The same, after some seconds (the second argument, 1 by default).
    die-on-step: The same, but a step with the message "die" ends the whole process.
    crash: Logs its environment variables, and ends with exit code 3.
    hang: Accepts connections and never answers.
    cling: The same as `hang`, and ignores SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from ..environment import Environment
from ..providers.redaction import KEYS
from ..settings import ServerSettings, environ_of_environments
from ..types import Action, Observation, State

CRASH_CODE = 3
DIE = "die"
"""The message of the step that ends the process."""
LAST_WORDS = "crashing on purpose"
"""The text in the log of a crashed server."""


class Say(Action):
    """Says something."""

    message: str


class Said(Observation):
    """The repeated message."""

    message: str = ""


class Mortal(Environment[Say, Said, State]):
    """Repeats messages. One of them ends the whole process."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Said:
        """Starts an episode."""
        self._steps = 0
        return Said()

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Said:
        """Repeats the message, or ends the process."""
        if action.message == DIE:
            _say("dying on purpose")
            os._exit(CRASH_CODE)
        self._steps += 1
        return Said(message=action.message, reward=1.0)

    @property
    def state(self) -> State:
        return State(step_count=self._steps)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> None:
    """Runs the behaviour of the first argument."""
    behaviour = sys.argv[1] if len(sys.argv) > 1 else ""
    match behaviour:
        case "serve" | "die-on-step" | "slow-start":
            if behaviour == "slow-start":
                time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
            target = "openenv.testing.misbehaving:Mortal"
            os.execv(sys.executable, [sys.executable, "-m", "openenv", "serve", target])  # noqa: S606 - itself
        case "crash":
            variables = {**environ_of_environments(), KEYS: ServerSettings.read().api_keys}
            _say("\n".join(f"{name}={value}" for name, value in variables.items()))
            _say(LAST_WORDS)
            sys.exit(CRASH_CODE)
        case "hang" | "cling":
            if behaviour == "cling":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            settings = ServerSettings.read()
            with socket.create_server((settings.host, settings.port)) as listener:
                _say(f"hanging on http://{listener.getsockname()[0]}:{listener.getsockname()[1]}")
                taken = []
                while True:
                    taken.append(listener.accept())
    sys.exit("usage: python -m openenv.testing.misbehaving serve|slow-start|die-on-step|crash|hang|cling")


if __name__ == "__main__":
    main()
