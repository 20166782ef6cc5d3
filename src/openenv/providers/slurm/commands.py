"""Run Slurm's commands, ask for the states of jobs, cancel jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from ..._asyncio import shielded, start_task
from ...errors import LaunchFailed, ProviderBusy, ProviderFailed
from ...settings import environ_of_environments
from ..base import StartRate
from ..redaction import is_secret, redact, secrets_of
from .job import COLUMNS, FORGOTTEN, SlurmJob, jobs_in, jobs_in_history, leftovers_in

# Seconds for one command. Slurm's commands retry while the controller does not answer.
LIMIT_S = 30.0
# Messages of the commands for temporary failures: the cluster is busy or at a limit.
_PASSING = re.compile(
    r"socket timed out|unable to contact slurm controller|connection refused|temporarily|standby mode|zero bytes"
    r"|transport endpoint is not connected|try again|communication connection failure"
    r"|QOSMaxSubmitJob|AssocMaxSubmitJob|submit.?limit|job\(?s?\)? limit",
    re.IGNORECASE,
)
# Messages that show that the controller was not reached.
_UNHEARD = re.compile(r"unable to contact slurm controller|connection refused|could not be started", re.IGNORECASE)
# Variables of the job that this process runs in, and a user's settings for the output of the commands.
_NOT_FOR_COMMANDS = ("SLURM_", "SLURMD_", "SQUEUE_", "SCANCEL_", "SACCT_")
_ABOUT_THE_CLUSTER = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


def environ_of_jobs() -> dict[str, str]:
    """The environment that jobs get from this process: without variables that look like secrets."""
    return {name: value for name, value in _environ().items() if not is_secret(name, value)}


def user() -> str:
    """Slurm's name of the user that owns our jobs."""
    if sys.platform == "win32":
        raise ProviderFailed("Windows has no Slurm: run this on a login node or in a job")
    import pwd  # noqa: PLC0415 - Windows lacks it

    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _environ() -> dict[str, str]:
    return {
        name: value
        for name, value in environ_of_environments().items()
        if name in _ABOUT_THE_CLUSTER or not name.startswith(_NOT_FOR_COMMANDS)
    }


def certainly_refused(error: BaseException) -> bool:
    """Whether a failed command has certainly had no effect."""
    if isinstance(error, ProviderBusy):
        return _UNHEARD.search(str(error)) is not None
    return isinstance(error, ProviderFailed)


async def run(
    *command: str, text: str | None = None, variables: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> str:
    """Runs one of Slurm's commands and returns its output. A cancellation ends the command first.

    Args:
        command: Its name and arguments. No secrets.
        text: Its standard input.
        variables: Its environment. None for that of this process.
        limit_s: Timeout in seconds.

    Raises:
        ProviderFailed: The command is not installed.
        ProviderBusy: The controller does not answer, or a temporary limit is reached.
        LaunchFailed: Slurm refused; with the command's message.
    """
    environ = _environ() if variables is None else dict(variables)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not end it: this process cleans up by such commands
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
        raise ProviderBusy(f"{command[0]} took longer than {limit_s:g} s: check slurmctld (scontrol ping)") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = redact(complaint.decode(errors="replace").strip(), secrets_of(environ))[-2000:]
        kind = ProviderBusy if _PASSING.search(said) else LaunchFailed
        raise kind(f"{command[0]} failed: {said or f'exit code {process.returncode}'}")
    return output.decode(errors="replace")


# Seconds between two requests for the unfinished tasks.
GLANCE_S = 0.1
# Seconds until cancelled jobs are over. Slurm kills those that do not end after KillWait, 30 s by default.
END_S = 90.0


def all_of(deployment: str) -> list[str]:
    """Options of `scancel` and `squeue` that select all jobs of a deployment."""
    return [f"--name={deployment}", f"--user={user()}"]


async def cancel(deployment: str, start_rate: StartRate) -> None:
    """Cancels all jobs of a deployment by its name, also those with unknown numbers."""
    selection = all_of(deployment)

    async def unfinished() -> list[str]:
        try:
            return (await _squeue("--format=%i", *selection)).split()
        except ProviderBusy:
            return ["unknown"]

    await cancel_tasks(selection, start_rate, unfinished)


async def cancel_tasks(
    selection: Sequence[str], start_rate: StartRate, under_way: Callable[[], Awaitable[Sequence[str]]]
) -> None:
    """Cancels tasks and waits for their end.

    Args:
        selection: Arguments of `scancel` that select the tasks.
        start_rate: Retries while the controller does not answer.
        under_way: Returns the tasks that are not over.

    Raises:
        LaunchFailed: They do not end, or Slurm refuses.
    """
    await start_rate.start(lambda: _scancel(selection))
    try:
        async with asyncio.timeout(END_S):
            while await under_way():  # noqa: ASYNC110 - Slurm has no callback
                await asyncio.sleep(GLANCE_S)
    except TimeoutError:
        raise LaunchFailed(f"{' '.join(selection)}: still in squeue {END_S:g} s after scancel") from None


async def cancel_others(deployment: str, known: Collection[str]) -> None:
    """Cancels the arrays of a deployment that are not in `known`, without waiting for their end."""
    listing = await run("squeue", "--noheader", *all_of(deployment), f"--Format={COLUMNS['labels']}")
    for each in leftovers_in(listing):
        if each.name not in known:
            await _scancel([each.name])


async def _scancel(selection: Sequence[str]) -> None:
    # SIGUSR1 makes the task kill its server at once; plain scancel makes the server drain. Pending tasks have none.
    with contextlib.suppress(LaunchFailed):
        await run("scancel", "--batch", "--signal=USR1", "--state=RUNNING", *selection)
    try:
        await run("scancel", *selection)
    except ProviderBusy:
        raise
    except LaunchFailed as refusal:
        if not any(word in str(refusal).lower() for word in ("invalid job id", "already complet")):
            raise


async def _squeue(*arguments: str) -> str:
    """The output of `squeue`. "" for jobs that the controller has forgotten, some minutes after their end."""
    try:
        return await run("squeue", "--noheader", *arguments)
    except LaunchFailed as refusal:
        if "invalid job id" in str(refusal).lower():
            return ""
        raise


EVERY_S = 1.0
# Seconds after its submission until a task that `squeue` does not list is considered to be over.
SETTLED_S = 5.0
_WAITS = SlurmJob("PENDING")


class JobStates:
    """The states of tasks, by `ARRAY_INDEX`, at most a second old."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._jobs: dict[str, SlurmJob] = {}
        self._asked = float("-inf")
        self._question: asyncio.Future[None] | None = None

    def watch(self, tasks: Iterable[str]) -> None:
        """Adds tasks to the requests."""
        self._since |= dict.fromkeys(tasks, asyncio.get_running_loop().time())

    def forget(self, tasks: Iterable[str]) -> None:
        """Removes tasks from the requests."""
        for task in tasks:
            self._since.pop(task, None)
            self._jobs.pop(task, None)

    async def job(self, task: str) -> SlurmJob:
        """The last known state of a task.

        The state stays the same while the controller does not answer. A forgotten task is over.

        Raises:
            ProviderFailed: There is no `squeue`, or it refuses.
        """
        if asyncio.get_running_loop().time() - self._asked >= EVERY_S:
            await self._answer()
        return self._jobs.get(task, _WAITS)

    async def under_way(self, tasks: Collection[str]) -> list[str]:
        """The tasks that are not over, from a new request."""
        # One that runs may be older than the caller's last action.
        if self._question is not None and not self._question.done():
            await asyncio.wait([self._question])
        await self._answer()
        return [task for task in tasks if self._jobs.get(task, _WAITS).over is None]

    async def _answer(self) -> None:
        if self._question is None or self._question.done():
            self._question = start_task(self._ask())
        await shielded(self._question)

    async def _ask(self) -> None:
        asked = asyncio.get_running_loop().time()
        try:
            arrays = sorted({task.partition("_")[0] for task in self._since})
            how = ("--array", "--states=all", f"--Format={COLUMNS['states']}", f"--jobs={','.join(arrays)}")
            found = jobs_in(await _squeue(*how)) if arrays else {}
            lost = [
                task
                for task, since in self._since.items()
                if task not in found and asked - since > SETTLED_S and self._jobs.get(task, _WAITS).over is None
            ]
            if lost:
                # The accounting database, if there is one, knows tasks that the controller has forgotten.
                try:
                    listing = await run("sacct", "-n", "-P", "-X", "-o", "JobID,State", "-j", ",".join(lost))
                except ProviderBusy:
                    raise
                except ProviderFailed:  # there is none, or it is unavailable
                    listing = ""
                found |= dict.fromkeys(lost, FORGOTTEN) | jobs_in_history(listing)
        except ProviderBusy:
            found = {}
        finally:
            self._asked = asyncio.get_running_loop().time()
        self._jobs |= {task: job for task, job in found.items() if task in self._since}
