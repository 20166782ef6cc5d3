"""Remove secrets from errors and logs, and add the end of a log to an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

KEYS = "OPENENV_API_KEYS"
"""The variable with a server's keys."""
_MASK = "***"
# Names of variables that hold secrets.
_SECRET = re.compile(r"key|token|secret|password|passwd|credential|auth|dsn", re.IGNORECASE)
# Secrets that are recognized by their form.
_LOOKS = re.compile(
    r"(?i:(?<=bearer )|(?<=basic )|(?<=api_key=\"))[\w.~+/=-]{8,}"
    r"|\b(?:sk-|hf_|ghp_|gho_|github_pat_|xox[abp]-|AKIA)[\w-]{8,}"
    r"|(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"
)
# Shorter values occur within ordinary words.
_SHORTEST = 4
# Values of such variables that are not secret, and occur in ordinary sentences.
_PLAIN = {"none", "null", "true", "false"}


def secrets_of(variables: Mapping[str, str]) -> list[str]:
    """The secrets among environment variables, recognized by the variables' names."""
    values = {value for name, value in variables.items() if _SECRET.search(name)}
    # A log may end within a value of several lines.
    lines = {line.strip() for value in values for line in value.splitlines()}
    parts = {part.rpartition(":")[2] for value in values for part in value.split(",")}
    found = (value for value in values | lines | parts if len(value) >= _SHORTEST and value.lower() not in _PLAIN)
    return sorted(found, key=len, reverse=True)


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret."""
    return bool(secrets_of({name: value}))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Masks secrets in a text: the given ones, and those recognized by their form.

    Args:
        text: The text of an error or a log.
        secrets: As `secrets_of` found them, the longest first.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _MASK)
    return _LOOKS.sub(_MASK, text)


def key_of(variables: Mapping[str, str]) -> str | None:
    """The key with full access to a server with these variables, if there is one."""
    for entry in variables.get(KEYS, "").split(","):
        scope, colon, key = entry.strip().partition(":")
        if colon and scope == "control":
            return key
        if not colon and scope and scope != "none":
            return scope
    return None


def last_lines(text: str, lines: int) -> str:
    """The end of a log."""
    return "\n".join(text.splitlines()[-lines:])


TAIL_LINES = 50
"""Lines of a log that an error shows."""


def with_tail(reason: str, log: str) -> str:
    """An error message, with the end of the log if there is one."""
    return f"{reason}; its log ends with:\n{log}" if log else reason
