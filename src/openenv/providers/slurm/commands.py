"""Slurm's commands: run without a shell, within bounded times, and their failures told apart."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress

from ...errors import LaunchFailed, ProviderBusy, ProviderFailed
from ...settings import environ_of_environments
from ..secrecy import masked, secrets_of

__all__ = ["environ_of_jobs", "refused", "run", "user"]

# Seconds for one command. They try again by themselves while the controller does not answer.
LIMIT_S = 30.0
# What these say when the cluster has no time or no room, and may have some soon.
_PASSING = re.compile(
    r"socket timed out|unable to contact slurm controller|connection refused|temporarily|standby mode|zero bytes"
    r"|transport endpoint is not connected|try again|communication connection failure"
    r"|QOSMaxSubmitJob|AssocMaxSubmitJob|submit.?limit|job\(?s?\)? limit",
    re.IGNORECASE,
)
# The controller was not even reached.
_UNHEARD = re.compile(r"unable to contact slurm controller|connection refused|could not be started", re.IGNORECASE)
# What a job inside of which this process runs has told it, and how somebody likes to read lists.
_NOT_FOR_COMMANDS = ("SLURM_", "SLURMD_", "SQUEUE_", "SCANCEL_", "SACCT_")
_ABOUT_THE_CLUSTER = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


def environ_of_jobs() -> dict[str, str]:
    """The environment of this process as jobs get it: without what looks like a secret."""
    return {name: value for name, value in _environ().items() if not secrets_of({name: value})}


def user() -> str:
    """Whose jobs ours are, as Slurm calls users."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _environ() -> dict[str, str]:
    return {
        name: value
        for name, value in environ_of_environments().items()
        if name in _ABOUT_THE_CLUSTER or not name.startswith(_NOT_FOR_COMMANDS)
    }


def refused(error: BaseException) -> bool:
    """Whether a command has certainly not done what it was to do."""
    if isinstance(error, ProviderBusy):
        return _UNHEARD.search(str(error)) is not None
    return isinstance(error, ProviderFailed)


async def run(
    *command: str, text: str | None = None, variables: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> str:
    """Runs one of Slurm's commands and returns what it prints. One that is cancelled has ended first.

    Args:
        command: Its name and arguments. No secrets.
        text: What it reads.
        variables: Its environment; None: that of this process.
        limit_s: Seconds that it may take.

    Raises:
        ProviderFailed: It is not installed.
        ProviderBusy: The controller does not answer, or has no room at the moment.
        LaunchFailed: It was refused; with what the command says.
    """
    environ = _environ() if variables is None else dict(variables)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for this process, which cleans up by such commands
        )
    except FileNotFoundError:
        raise ProviderFailed(
            f"{command[0]} is not installed here: SlurmProvider runs where Slurm's commands are (slurm-client), "
            "on a login node or in a job"
        ) from None
    except OSError as error:
        raise ProviderBusy(f"{command[0]} could not be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(limit_s):
            output, complaint = await process.communicate(None if text is None else text.encode())
    except TimeoutError:
        raise ProviderBusy(
            f"{command[0]} took longer than {limit_s:g} s: is slurmctld well? (scontrol ping)"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = masked(complaint.decode(errors="replace").strip(), secrets_of(environ))[-2000:]
        kind = ProviderBusy if _PASSING.search(said) else LaunchFailed
        raise kind(f"{command[0]} failed: {said or f'exit code {process.returncode}'}")
    return output.decode(errors="replace")
