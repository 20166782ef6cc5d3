"""Agent programs: how each is installed and started, and finds its model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidArgument

HOME = "/home/agent"


@dataclass(frozen=True)
class AgentProgram:
    """How to run an agent. In texts, `{url}`, `{key}`, `{model}` stand for those of the proxy, session and model.

    Attributes:
        command: A line for `sh -c`. The variable `INSTRUCTION` has the instruction, as has the file `$HOME/task.md`.
        variables: Environment variables.
        files: Contents of files in its home, by relative name.
        resume: The line that continues the agent's own conversation; None: it begins again on the files as they are.
        install: How to install it on a machine with a network, for people.
    """

    command: str
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    resume: str | None = None
    install: str = ""

    def filled(self, url: str, key: str, model: str, folders: Sequence[Path] = ()) -> AgentProgram:
        """The program for one session: its texts without placeholders.

        Args:
            url: Address of the proxy.
            key: Key of the session.
            model: Name of the model.
            folders: Where agents are installed: `bin` and `node_modules/.bin` of each come first in the PATH.
        """
        places = [f"{folder}/{name}" for folder in folders for name in ("bin", "node_modules/.bin")]
        begin = f"PATH={shlex.quote(':'.join(places))}:$PATH; " if places else ""

        def fill(text: str) -> str:
            for name, value in (("{url}", url), ("{key}", key), ("{model}", model)):
                text = text.replace(name, value)
            return text

        return AgentProgram(
            begin + fill(self.command),
            {name: fill(value) for name, value in self.variables.items()},
            {name: fill(text) for name, text in self.files.items()},
            None if self.resume is None else begin + fill(self.resume),
            self.install,
        )


_OPENAI = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"}
MODEL_VARIABLES = {
    **_OPENAI,
    **dict.fromkeys(("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), "{url}"),
    **dict.fromkeys(("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), "{key}"),
    "MODEL": "{model}",
}
"""Variables with which the SDKs of OpenAI, Anthropic and Google call a proxy."""
_OPENCODE = {
    "model": "proxy/{model}",
    "small_model": "proxy/{model}",
    "autoupdate": False,
    "share": "disabled",
    "permission": {"*": "allow"},
    "provider": {
        "proxy": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
            "models": {"{model}": {"name": "{model}", "limit": {"context": 128000, "output": 8192}}},
        }
    },
}
_CODEX = """model = "{model}"
model_provider = "proxy"
[model_providers.proxy]
name = "proxy"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""

PROGRAMS = {
    "aider": AgentProgram(
        'aider --yes-always --no-git --no-check-update --no-show-model-warnings --model "openai/{model}" '
        '--message "$INSTRUCTION"',
        {**_OPENAI, "AIDER_ANALYTICS": "false"},
        install="pip install aider-chat",
    ),
    "claude-code": AgentProgram(
        'claude -p "$INSTRUCTION" --dangerously-skip-permissions --output-format json',
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "{key}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        },
        resume='claude --continue -p "$INSTRUCTION" --dangerously-skip-permissions --output-format json',
        install="npm install @anthropic-ai/claude-code",
    ),
    "codex": AgentProgram(
        'codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$INSTRUCTION"',
        {"OPENAI_API_KEY": "{key}"},
        {".codex/config.toml": _CODEX},
        resume="codex exec resume --last --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "
        '"$INSTRUCTION"',
        install="npm install @openai/codex",
    ),
    "gemini-cli": AgentProgram(
        'gemini --yolo --model "{model}" --prompt "$INSTRUCTION"',
        {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{key}"},
        {".gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}})},
        install="npm install @google/gemini-cli",
    ),
    "mini-swe-agent": AgentProgram(
        'mini --yolo --exit-immediately --model "openai/{model}" --task "$INSTRUCTION" '
        '--output "$HOME/trajectory.json"',
        {
            **_OPENAI,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        install="pip install mini-swe-agent",
    ),
    "opencode": AgentProgram(
        'opencode run "$INSTRUCTION"',
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {".config/opencode/opencode.json": json.dumps(_OPENCODE)},
        resume='opencode run --continue "$INSTRUCTION"',
        install="npm install opencode-ai",
    ),
    "openhands": AgentProgram(
        'openhands --headless --task "$INSTRUCTION" --override-with-envs',
        {"LLM_BASE_URL": "{url}/v1", "LLM_API_KEY": "{key}", "LLM_MODEL": "openai/{model}"},
        install="pip install openhands",
    ),
}
"""The agents that are known by a name."""


def program_of(agent: str | AgentProgram) -> AgentProgram:
    """An agent by its name. Raises `InvalidArgument` for an unknown one."""
    if isinstance(agent, AgentProgram):
        return agent
    if agent not in PROGRAMS:
        names = ", ".join(PROGRAMS)
        raise InvalidArgument(f"agent {agent!r} is unknown: choose {names}, or give an AgentProgram with its command")
    return PROGRAMS[agent]
