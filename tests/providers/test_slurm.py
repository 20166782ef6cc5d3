"""What the Slurm provider says to Slurm and makes of its answers. The real one is in tests/infra."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from openenv._asyncio import on_shared
from openenv.errors import LaunchFailed, ProviderBusy, ProviderFailed, UsageError
from openenv.providers import LaunchSpec, Resources, SlurmProvider, StartRate
from openenv.providers.owner import OwnerProcess
from openenv.providers.slurm import task
from openenv.providers.slurm.channel import FolderChannel, ListenerChannel
from openenv.providers.slurm.commands import JobStates, environ_of_jobs, run
from openenv.providers.slurm.job import (
    AS_ASKED,
    SlurmJob,
    TaskNotice,
    address_of,
    arrays_of,
    comment,
    end_of,
    indices,
    jobs_in,
    jobs_in_history,
    leftovers_in,
    newest,
    options_of,
    script,
    seconds_of,
)
from openenv.providers.slurm.task import TOKEN, VARIABLES, proof

ECHO = LaunchSpec(target="echo")
# For what takes milliseconds on a machine that has time.
LIMIT_S = 15.0


# What sbatch is told.


def test_resources_are_asked_for_in_slurms_words() -> None:
    resources = Resources(cpus=1.5, memory="1g", gpus=2)
    asked = options_of(LaunchSpec(target="echo", resources=resources), {"partition": "main", "exclusive": True})
    assert asked == ["--cpus-per-task=2", "--mem=1024M", "--gres=gpu:2", "--partition=main", "--exclusive"]


def test_options_of_a_specification_go_before_those_of_the_provider() -> None:
    spec = LaunchSpec(
        target="echo", options={"partition": "gpu", "gres": "nic:1", "qos": None}, resources=Resources(gpus=1)
    )
    given = {"partition": "cpu", "qos": "low", "account": None, "exclusive": False}
    assert options_of(spec, given) == ["--gres=gpu:1,nic:1", "--partition=gpu"]


@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_an_option_of_several_lines_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="partition must be one line"):
        options_of(ECHO, {"partition": value})


@pytest.mark.parametrize("value", ["", "soon", "1:2:3:4", "-5", "1h"])
def test_a_time_that_slurm_would_not_understand_is_refused(value: str) -> None:
    if value:
        with pytest.raises(UsageError, match="time_limit must be"):
            SlurmProvider("echo", time_limit=value).deployment(ECHO)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("4:00:00", 14400),
        ("1-0", 86400),
        ("1-12:30", 131400),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


def test_a_time_limit_that_is_shorter_than_the_grace_is_refused() -> None:
    SlurmProvider("echo", time_limit="2", grace_s=60).deployment(ECHO)
    with pytest.raises(UsageError, match="raise it, or lower grace_s"):
        SlurmProvider("echo", time_limit=timedelta(seconds=50), grace_s=60).deployment(ECHO)
    with pytest.raises(UsageError, match="raise it, or lower grace_s"):
        SlurmProvider("echo").deployment(ECHO.changed(options={"time": "0:30"}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"announce": "mail"}, "announce must be folder or connect"),
        ({"reached_at": "home"}, "reached_at must be address or hostname"),
        ({"grace_s": -1}, "grace_s must be from 0"),
        ({"queue_timeout_s": 0}, "queue_timeout_s must be more than 0"),
        ({"time_limit": timedelta(0)}, "time_limit must be more than 0"),
        ({"shared_folder": "/tmp/a%j"}, "shared_folder must not contain '%'"),
        ({"setup": ["true\nfalse"]}, "setup must be a list of lines"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SlurmProvider("echo", **arguments).deployment(ECHO)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LaunchSpec(image="some:image"), "does not support image"),
        (LaunchSpec(target="echo", options={"wrap": "rm"}), "no option wrap"),
        (LaunchSpec(target="echo", resources=Resources(processes=3)), "cannot limit processes"),
    ],
)
def test_what_slurm_cannot_do_is_refused(spec: LaunchSpec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SlurmProvider().deployment(spec)


def test_jobs_do_not_inherit_secrets_nor_the_job_they_are_started_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "OPENENV_API_KEYS", "SLURM_JOB_ID", "SQUEUE_FORMAT", "SLURM_CONF", "SOME_WORD"):
        monkeypatch.setenv(name, "value-of-it")
    kept = environ_of_jobs().keys()
    assert {"SLURM_CONF", "SOME_WORD", "PATH"} <= kept
    assert not {"HF_TOKEN", "OPENENV_API_KEYS", "SLURM_JOB_ID", "SQUEUE_FORMAT"} & kept


# What Slurm tells.


def _line(*columns: tuple[str, int]) -> str:
    return "".join(text.ljust(width) for text, width in columns)


def test_states_are_read_of_single_tasks_and_of_many() -> None:
    widths = (24, 24, 24, 12, 64)
    rows = [("7", "0", "RUNNING", "2", "None"), ("7", "1-3%2", "PENDING", "0", "ReqNodeNotAvail, down:n1")]
    listing = "\n".join(_line(*zip(row, widths, strict=True)) for row in [*rows, ("8", "N/A", "RUNNING", "", "")])
    waits = SlurmJob("PENDING", 0, "ReqNodeNotAvail, down:n1")
    assert jobs_in(listing) == {"7_0": SlurmJob("RUNNING", 2, ""), "7_1": waits, "7_2": waits, "7_3": waits}
    assert jobs_in("") == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3", [3]), ("[0-2,7]", [0, 1, 2, 7]), ("1-9:4", [1, 5, 9]), ("0-1%1", [0, 1]), ("N/A", []), ("", [])],
)
def test_indices_are_read(text: str, numbers: list[int]) -> None:
    assert indices(text) == numbers


def test_the_history_tells_how_tasks_ended() -> None:
    assert jobs_in_history("7_0|CANCELLED by 0\n7_1|TIMEOUT\n7_2|\n") == {
        "7_0": SlurmJob("CANCELLED"),
        "7_1": SlurmJob("TIMEOUT"),
    }


def test_tasks_are_cancelled_by_array() -> None:
    assert arrays_of(["7_0", "8_2", "7_3"]) == ["7_[0,3]", "8_[2]"]


def test_our_jobs_are_told_from_others() -> None:
    owner = OwnerProcess.this()
    labels = {"openenv.deployment": "openenv-echo-1", "openenv.owner": str(owner)}
    rows = [
        ("7", "openenv-echo-1", comment(labels, Path("/shared/ü"))),
        ("8", "mine", "[1]"),
        ("9", "mine", "(null)"),
        ("10", "mine", comment(labels, None)),
    ]
    [left] = leftovers_in("\n".join(_line(*zip(row, (24, 160, 1024), strict=True)) for row in rows))
    assert (left.kind, left.name, left.deployment, left.owner) == ("job", "7", "openenv-echo-1", owner)
    assert left.handle == "/shared/ü"


def test_every_state_says_whether_the_server_is_gone() -> None:
    for state in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED"):
        assert SlurmJob(state).over is None
    for state in ("COMPLETED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "PREEMPTED", "OUT_OF_MEMORY"):
        assert state in (SlurmJob(state).over or "")
    assert SlurmJob("FAILED", reason="NonZeroExitCode").over == "failed as a job (FAILED, NonZeroExitCode)"


# What tasks tell.


def test_what_an_earlier_start_told_counts_no_more() -> None:
    first = TaskNotice("7_0", 0, "http://n0:1")
    assert address_of(SlurmJob("RUNNING"), first) == "http://n0:1"
    assert address_of(SlurmJob("PENDING", restarts=1), first) is None
    assert end_of(SlurmJob("PENDING", restarts=1), TaskNotice("7_0", 0, None, ended="ended with exit code 3")) is None
    assert newest([TaskNotice("7_0", 1, "http://n1:1"), first]) == {"7_0": TaskNotice("7_0", 1, "http://n1:1")}


def test_how_a_server_ended_is_told_before_slurm_knows() -> None:
    assert (
        end_of(SlurmJob("RUNNING"), TaskNotice("7_0", 0, None, ended="ended with exit code 3"))
        == "ended with exit code 3"
    )
    assert end_of(SlurmJob("RUNNING"), TaskNotice("7_0", 0, None, ended=AS_ASKED)) is None
    assert end_of(SlurmJob("RUNNING"), None) is None
    assert "TIMEOUT" in (end_of(SlurmJob("TIMEOUT"), TaskNotice("7_0", 0, None, ended=AS_ASKED)) or "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"task": "1", "restart": "x"}', '{"task": 1, "log": 3}']
)
def test_what_is_no_notice_is_none(text: str) -> None:
    assert TaskNotice.read(text) is None


# The task itself, without Slurm.


class Started:
    """A batch script that runs on this machine, with what Slurm would have told it."""

    def __init__(
        self, board: FolderChannel | ListenerChannel, command: list[str], port: int | None = None, **variables: str
    ):
        plan = {"command": command, "port": port, "announced": "address", "trainers": ["127.0.0.1"], **board.plan}
        self.text = script(sys.executable, ["export SET_UP=yes"], Path(task.__file__).read_text(), plan)
        told = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_SUBMIT_HOST": "127.0.0.1"}
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", self.text],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **told, **board.environ, **variables},
        )

    async def ended(self) -> tuple[int, str]:
        output, _ = await asyncio.to_thread(self.process.communicate, timeout=LIMIT_S)
        return self.process.returncode, output


async def _over(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while OwnerProcess.of(pid).born != "0":  # noqa: ASYNC110 - nobody tells of a process that is not ours
            await asyncio.sleep(0.02)


async def _noticed(board: FolderChannel | ListenerChannel, holds: Callable[[TaskNotice], object]) -> TaskNotice:
    async with asyncio.timeout(LIMIT_S):
        while True:
            notice = (await board.notices()).get("7_0")
            if notice is not None and holds(notice):
                return notice
            await asyncio.sleep(0.02)


@pytest.fixture(params=["folder", "connect"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> FolderChannel | ListenerChannel:
    return FolderChannel(tmp_path, "deployment") if request.param == "folder" else ListenerChannel(0)


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


_SERVE = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("drained", flush=True), sys.exit(0)))
print("set up:", os.environ["SET_UP"], os.environ.get("OPENENV_TASK_TOKEN"), os.environ["GIVEN"], flush=True)
listener = socket.create_server((os.environ["HOST"], int(os.environ["PORT"])))
print("serving on http://%s:%d" % listener.getsockname(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("port", [0, None])
async def test_a_task_announces_its_server_and_hands_sigterm_on(
    board: FolderChannel | ListenerChannel, port: int | None
) -> None:
    await board.open({"GIVEN": "secret-of-the-server"}, {})
    task = Started(board, _python(_SERVE), port)
    assert "secret-of-the-server" not in task.text
    notice = await _noticed(board, lambda notice: notice.url)
    host, _, number = (notice.url or "").removeprefix("http://").rpartition(":")
    async with asyncio.timeout(LIMIT_S):
        while True:  # of a port that it was given, it is told before it is listened at
            try:
                _, writer = await asyncio.open_connection(host, int(number))
                break
            except OSError:
                await asyncio.sleep(0.02)
    writer.close()
    task.process.send_signal(signal.SIGTERM)
    code, log = await task.ended()
    assert (code, "drained" in log, "set up: yes None secret-of-the-server" in log) == (0, True, True)
    assert (await _noticed(board, lambda notice: notice.ended)).ended == AS_ASKED
    await board.close()


async def test_a_task_ends_as_its_server_and_says_so(board: FolderChannel | ListenerChannel) -> None:
    await board.open({}, {})
    code, log = await Started(
        board, _python("import sys; print('last words', end='', flush=True); sys.exit(3)")
    ).ended()
    assert (code, "last words" in log) == (3, True)
    notice = await _noticed(board, lambda notice: notice.ended)
    assert (notice.ended, notice.url) == ("ended with exit code 3", None)
    if isinstance(board, ListenerChannel):
        assert await board.log("7_0", 1) == "last words"
    await board.close()


async def test_a_command_that_there_is_not_is_told(board: FolderChannel | ListenerChannel) -> None:
    await board.open({}, {})
    code, log = await Started(board, ["/no/such/command"]).ended()
    assert (code, "/no/such/command could not be started: No such file" in log) == (127, True)
    assert (await _noticed(board, lambda notice: notice.ended)).ended == "ended with exit code 127"
    await board.close()


async def test_a_task_that_is_to_end_at_once_takes_along_what_its_server_has_started(
    board: FolderChannel | ListenerChannel,
) -> None:
    code = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('child', subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    await board.open({}, {})
    task = Started(board, _python(code))
    assert task.process.stdout is not None
    child = int((await asyncio.to_thread(task.process.stdout.readline)).split()[1])
    task.process.send_signal(signal.SIGUSR1)
    assert (await task.ended())[0] == 128 + signal.SIGKILL
    await _over(child)
    await board.close()


async def test_a_server_ends_with_its_task(tmp_path: Path) -> None:
    board = FolderChannel(tmp_path, "deployment")
    await board.open({}, {})
    task = Started(board, _python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"))
    assert task.process.stdout is not None
    server = int(await asyncio.to_thread(task.process.stdout.readline))
    task.process.kill()
    await task.ended()
    await _over(server)


@pytest.mark.slow
async def test_a_task_whose_trainer_is_gone_goes_on(tmp_path: Path) -> None:
    listener = ListenerChannel(0)
    await listener.open({"GIVEN": ""}, {})
    task = Started(listener, _python(_SERVE), 0)
    await _noticed(listener, lambda notice: notice.url)
    await listener.close()
    task.process.send_signal(signal.SIGTERM)
    assert (await task.ended())[0] == 0


async def test_a_trainer_that_does_not_answer_holds_up_neither_the_log_nor_the_end(tmp_path: Path) -> None:
    listener, done = ListenerChannel(0), tmp_path / "done"
    await listener.open({}, {})
    code = "import os, pathlib, time; print(('x' * 99 + chr(10)) * 20000, flush=True)\n"
    code += f"pathlib.Path({str(done)!r}).write_text(str(os.getpid())); time.sleep(60)"
    with socket.create_server(("", 0)) as silent:
        trainers = [f"127.0.0.{number}" for number in range(1, 7)]
        listener.plan = {"listener": silent.getsockname()[1], "trainers": trainers}
        task = Started(listener, _python(code))
        reading = asyncio.ensure_future(task.ended())
        async with asyncio.timeout(LIMIT_S):
            while not done.exists() or not done.read_text():  # noqa: ASYNC110 - a file calls nobody back
                await asyncio.sleep(0.02)
        task.process.send_signal(signal.SIGUSR1)
        await _over(int(done.read_text()))
        task.process.kill()
        await reading
    await listener.close()


async def test_secrets_in_a_log_are_not_sent_to_the_trainer() -> None:
    listener = ListenerChannel(0)
    given = {"MODEL_TOKEN": "sesame-open-up", "OPENENV_API_KEYS": "control:the-key-of-it", "WORD": "plain-word"}
    await listener.open(given, {})
    code = "import os; print(os.environ['MODEL_TOKEN'], os.environ['OPENENV_API_KEYS'], os.environ['WORD'])"
    code += "; print('x' * 1990 + 'sesame-open-up', end='', flush=True); print()"
    _, output = await Started(listener, _python(code)).ended()
    assert "sesame-open-up" in output  # it has been said, where only its owner reads it
    notice = await _noticed(listener, lambda notice: notice.ended)
    assert notice.log == ("*** *** plain-word", "x" * 1990 + "***")
    await listener.close()


async def test_a_log_of_many_long_lines_keeps_no_address_from_being_heard() -> None:
    listener = ListenerChannel(0)
    await listener.open({}, {})
    lines = "for _ in range(50): print(chr(0x1F600) * 2000)"
    task = Started(listener, _python(f"import sys\nsys.stdout.reconfigure(encoding='utf-8')\n{lines}"))
    assert (await task.ended())[0] == 0
    assert len((await _noticed(listener, lambda notice: notice.ended)).log) == 50
    await listener.close()


async def test_a_folder_whose_making_was_cancelled_is_not_made_after_its_removal(tmp_path: Path) -> None:
    """Of a file server that takes its time."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(FolderChannel):
        def _make(self, variables: Any, labels: Any) -> None:
            begun.set()
            go_on.wait(LIMIT_S)
            super()._make(variables, labels)

    board = Slow(tmp_path, "deployment")
    opening = asyncio.ensure_future(board.open({"OPENENV_API_KEYS": "control:secret"}, {}))
    await asyncio.to_thread(begun.wait, LIMIT_S)
    opening.cancel()
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await opening
    await board.close()
    go_on.set()
    others = [thread for thread in threading.enumerate() if thread.name == "openenv-call"]
    await asyncio.to_thread(lambda: [thread.join(LIMIT_S) for thread in others])
    assert not (tmp_path / "deployment").exists()


async def test_a_listener_believes_nobody_who_does_not_know_its_token() -> None:
    listener = ListenerChannel(0)
    await listener.open({"GIVEN": "secret-of-the-server"}, {})
    assert "secret-of-the-server" in listener.environ[VARIABLES]
    said = json.dumps({"task": "7_0", "restart": 0, "url": "http://evil:1"})

    async def tell(line: Callable[[str], str]) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.plan["listener"])
        challenge = (await reader.readline()).decode().strip()
        writer.write(f"{line(challenge)}\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    for line in (
        lambda _: said,
        lambda challenge: f"{proof('guessed', challenge, said)} {said}",
        lambda challenge: f"{proof(listener.environ[TOKEN], 'an old challenge', said)} {said}",
        lambda challenge: f"{proof(listener.environ[TOKEN], challenge, '{}')} {{}}",
        lambda _: "\u00fc " + said,
    ):
        assert await tell(line) == b""
    assert await listener.notices() == {}
    assert await tell(lambda challenge: f"{proof(listener.environ[TOKEN], challenge, said)} {said}") == b"heard\n"
    assert (await listener.notices())["7_0"].url == "http://evil:1"
    await listener.close()
    await listener.close()


# Commands. A stand-in only for what a real controller does not do on request.


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes commands from lines of shell. Returns where their calls are written to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**lines: str) -> Path:
        for name in ("sbatch", "squeue", "scancel", "sacct"):
            path = folder / name
            text = lines.get(name, "exit 0")
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{tmp_path}/calls"\ncd "{tmp_path}"\n{text}\n')
            path.chmod(0o755)
        return tmp_path / "calls"

    return make


def _calls(calls: Path, name: str) -> list[str]:
    return [line for line in calls.read_text().splitlines() if line.startswith(name)]


async def test_where_there_is_no_slurm_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProviderFailed, match="sbatch is not installed here") as caught:
        await SlurmProvider(shared_folder=tmp_path / "shared").launch(ECHO)
    assert not isinstance(caught.value, LaunchFailed)
    assert not getattr(caught.value, "__notes__", [])
    assert list((tmp_path / "shared").iterdir()) == []
    with pytest.raises(ProviderFailed, match="squeue is not installed here"):
        await SlurmProvider(shared_folder=tmp_path).leftovers()


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", ProviderBusy),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            ProviderBusy,
        ),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", ProviderBusy),
        ("sbatch: error: invalid partition specified: x", LaunchFailed),
    ],
)
async def test_what_passes_is_told_from_what_does_not(
    complaint: str, kind: type[ProviderFailed], stand_in: Callable[..., Path]
) -> None:
    stand_in(sbatch=f'echo "{complaint}" >&2; exit 1')
    with pytest.raises(ProviderFailed) as caught:
        await run("sbatch")
    assert type(caught.value) is kind
    assert complaint in str(caught.value)


async def test_a_command_that_hangs_is_ended_in_time(stand_in: Callable[..., Path]) -> None:
    stand_in(squeue="exec sleep 60")
    began = time.monotonic()
    with pytest.raises(ProviderBusy, match=r"squeue .* 0.2 s"):
        await run("squeue", limit_s=0.2)
    assert time.monotonic() - began < LIMIT_S


async def test_an_array_whose_number_was_not_heard_is_cancelled_before_the_next_attempt(
    stand_in: Callable[..., Path], tmp_path: Path
) -> None:
    """Slurm may have taken it all the same."""
    owner = json.dumps(["openenv", "some", str(OwnerProcess.this()), None])
    calls = stand_in(
        sbatch="[ -e late ] && echo invalid partition >&2 || echo Socket timed out >&2; touch late; exit 1",
        squeue=f"case \"$*\" in *ArrayJobID*Comment*) printf '%-24s%-160s%s\\n' 41 some '{owner}';; esac",
    )
    provider = SlurmProvider(shared_folder=tmp_path / "shared", start_rate=StartRate(pause_s=0.01))
    with pytest.raises(LaunchFailed, match="invalid partition"):
        await provider.launch(ECHO)
    assert len(_calls(calls, "sbatch")) == 2
    assert _calls(calls, "scancel")[1] == "scancel 41"


async def test_states_of_all_servers_are_one_question(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.providers.slurm.commands.EVERY_S", 60.0)
    row = _line(("7", 24), ("0-49", 24), ("RUNNING", 24), ("0", 12), ("None", 64), ("n0", 256))
    calls = stand_in(squeue=f'echo "{row}"')
    queue = JobStates()
    names = [f"7_{index}" for index in range(50)]

    async def test() -> None:
        queue.watch(names)
        for _ in range(3):
            jobs = await asyncio.gather(*(queue.job(name) for name in names))
            assert {job.state for job in jobs} == {"RUNNING"}

    await on_shared(test())
    assert len(_calls(calls, "squeue")) == 1


async def test_while_the_controller_is_busy_what_is_known_stands(stand_in: Callable[..., Path]) -> None:
    row = _line(("7", 24), ("0", 24), ("RUNNING", 24), ("1", 12), ("None", 64), ("n0", 256))
    stand_in(squeue=f'if [ -e once ]; then echo "Socket timed out" >&2; exit 1; fi; touch once; echo "{row}"')
    queue = JobStates()
    queue.watch(["7_0"])
    assert (await queue.job("7_0")).state == "RUNNING"
    assert await queue.under_way(["7_0"]) == ["7_0"]
    assert (await queue.job("7_0")).state == "RUNNING"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_asks_its_own_questions(stand_in: Callable[..., Path]) -> None:
    row = _line(("7", 24), ("0", 24), ("RUNNING", 24), ("1", 12), ("None", 64), ("n0", 256))
    stand_in(squeue=f'echo "{row}"')
    queue = JobStates()

    async def under_way() -> list[str]:
        queue.watch(["7_0"])
        async with asyncio.timeout(10.0):
            return await queue.under_way(["7_0"])

    assert asyncio.run(under_way()) == ["7_0"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(asyncio.run(under_way()) != ["7_0"])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_what_the_controller_has_forgotten_the_accounting_may_know(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.providers.slurm.commands.SETTLED_S", -1.0)
    stand_in(squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1', sacct="echo '7_0|TIMEOUT'")
    queue = JobStates()
    queue.watch(["7_0", "7_1"])
    assert await queue.under_way(["7_0", "7_1"]) == []
    assert (await queue.job("7_0")).state == "TIMEOUT"
    assert (await queue.job("7_1")).over == "has ended, with a result that Slurm has forgotten"
