"""An environment in a process of its own: what it may do, what becomes of it, and what its caller is told."""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import pytest

from openenv.errors import EnvironmentCrashed, InvalidAction, ResetRequired, StepFailed
from openenv.runtime.profile import Execution
from openenv.types import Action

from .wild import (
    AsyncClosing,
    AsyncWild,
    Closing,
    Failing,
    LoopClosing,
    Patient,
    Wild,
    alive,
    descendants,
    gone,
    group_of,
    make_wild,
    patient_of,
    pool_of,
    until,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")


def refuse(environment, argument):
    """An operation of a module."""
    raise InvalidAction(f"{environment.name} refuses {argument}", data={"errors": [{"loc": ["a"], "msg": "no"}]})


def describe(environment, argument):
    return {"name": environment.name, "argument": argument}


async def test_an_environment_lives_in_a_process_of_its_own(loop_factory):
    async with patient_of() as patient:
        assert patient.profile.execution is Execution.PROCESS
        assert patient.profile.name == "Wild"
        fields, error = await patient.reset(seed=3)
        assert error is None
        assert fields["metadata"] == {"pid": fields["metadata"]["pid"], "name": "wild", "seed": 3}
        assert fields["metadata"]["pid"] != os.getpid()
        assert await patient.step() == ({"metadata": {"done": None}, "reward": 1.0, "done": False}, None)
        assert await patient.state() == ({"episode_id": None, "step_count": 1}, None)


async def test_arguments_of_a_step_reach_it():
    async with patient_of() as patient:
        step_with = patient.profile.step_with
        fields, _ = await patient.call(step_with, (Action(), {"timeout_s": 2.0, "else": 1}))
        assert fields["reward"] == 1.0


async def test_other_operations_go_by_their_name():
    async with patient_of() as patient:
        assert await patient.call(describe, [1]) == ({"name": "wild", "argument": [1]}, None)
        _, error = await patient.call(refuse, "this")
        assert type(error) is InvalidAction
        assert error.message == "wild refuses this"
        assert error.data["errors"] == [{"loc": ["a"], "msg": "no"}]


async def test_what_cannot_be_sent_is_said_and_harms_nothing():
    async with patient_of() as patient:
        _, error = await patient.call(lambda environment, argument: None, None)
        assert "cannot be sent" in str(error)
        assert await patient.do() is None


async def test_a_function_and_its_arguments_make_environments():
    async with patient_of(make_wild) as patient:
        fields, _ = await patient.reset()
        assert fields["metadata"]["name"] == "made by a function"
    async with patient_of(Wild, "given") as patient:
        fields, _ = await patient.reset()
        assert fields["metadata"]["name"] == "given"


async def test_an_asynchronous_environment_has_a_loop_that_goes_on_between_calls(loop_factory):
    async with patient_of(AsyncWild) as patient:
        assert (await patient.reset())[1] is None
        first = await patient.do(do="ticks")
        async with asyncio.timeout(10):
            while await patient.do(do="ticks") < first + 5:
                pass
        assert await patient.do() is None
        _, error = await patient.step(do="leave", code=4)
        assert error.exit_code == 4


async def test_bytes_and_arrays_come_back_as_they_are():
    numpy = pytest.importorskip("numpy")
    async with patient_of() as patient:
        told = await patient.do(do="numbers")
        assert told["bytes"] == b"\0\xff"
        assert told["scalar"] == 1.5
        assert told["array"].dtype == numpy.float32
        assert told["array"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("size", [0, 1000, 300_000, 20_000_000])
async def test_observations_of_every_size_arrive(size, loop_factory):
    async with patient_of() as patient:
        assert await patient.do(do="say", size=size) == "x" * size
        assert await patient.do() is None


async def test_large_actions_arrive(loop_factory):
    async with patient_of() as patient:
        fields, error = await patient.call(describe, "y" * 20_000_000)
        assert error is None
        assert len(fields["argument"]) == 20_000_000


async def test_an_exception_is_one_and_the_process_lives():
    async with patient_of() as patient:
        pid = await patient.pid()
        _, error = await patient.step(do="fail")
        assert type(error).__name__ == "LookupError"
        assert str(error) == "there is no such door"
        assert "in fail" in error.__notes__[0]
        assert await patient.pid() == pid


async def test_an_observation_that_cannot_be_sent_is_the_environments_failure():
    async with patient_of() as patient:
        _, error = await patient.step(do="unwritable")
        assert type(error) is StepFailed
        assert "metadata" in error.message
        assert await patient.do() is None


async def test_a_crash_tells_the_signal_and_the_last_words():
    async with patient_of() as patient:
        pid = await patient.pid()
        _, error = await patient.step(do="segfault")
        assert type(error) is EnvironmentCrashed
        assert error.signal == "SIGSEGV"
        assert error.exit_code is None
        assert "in segfault" in error.stderr
        assert "SIGSEGV" in error.message
        assert "reset()" in error.message
        await gone(pid)


async def test_an_exit_tells_its_code_and_the_last_4_kib_of_stderr():
    async with patient_of() as patient:
        _, error = await patient.step(do="leave", code=7, words="a" * 5000 + "\nout of licences\n")
        assert type(error) is EnvironmentCrashed
        assert error.exit_code == 7
        assert error.signal is None
        assert error.data == {"exit_code": 7, "signal": None, "stderr": error.stderr}
        assert len(error.stderr) == 4096
        assert error.stderr.endswith("a\nout of licences\n")
        assert "out of licences" in error.message


async def test_after_a_crash_reset_starts_anew_and_nothing_else_does():
    async with patient_of() as patient:
        first = await patient.pid()
        await patient.step(do="leave", code=1)
        _, error = await patient.step()
        assert isinstance(error, EnvironmentCrashed)
        _, error = await patient.state()
        assert "reset()" in error.message
        second = await patient.pid()
        assert second != first
        assert (await patient.step())[0]["reward"] == 1.0


async def test_a_process_that_ends_between_calls_is_replaced_by_reset():
    async with patient_of() as patient:
        pid = await patient.pid()
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        _, error = await patient.step()
        assert isinstance(error, EnvironmentCrashed)
        assert error.signal == "SIGKILL"
        assert await patient.pid() != pid


@pytest.mark.parametrize("how", ["hang", "spin", "resist"])
async def test_a_call_that_never_returns_is_stopped(how, tmp_path):
    there = tmp_path / "there"
    async with patient_of() as patient:
        pid = await patient.pid()
        if how == "resist":
            call = asyncio.ensure_future(patient.step(do=how, there=str(there)))
            await until(there.exists)  # it has said what it thinks of SIGTERM
        else:
            call = asyncio.ensure_future(patient.step(do=how))
            await asyncio.sleep(0)
        assert patient.executor.stoppable
        patient.executor.cancel()
        _, error = await call
        assert type(error) is ResetRequired
        assert "reset()" in error.message
        assert not alive(pid)
        _, error = await patient.step()
        assert type(error) is ResetRequired
        assert await patient.pid() != pid
        assert await patient.do() is None


async def test_an_environment_may_tidy_up_when_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("openenv.runtime.process.executor.GRACE_S", 20.0)
    there = tmp_path / "there"
    async with patient_of() as patient:
        call = asyncio.ensure_future(patient.step(do="tidy", path=str(tmp_path / "note"), there=str(there)))
        await until(there.exists)
        patient.executor.cancel()
        await call
        assert (tmp_path / "note").read_text() == "tidy"


async def test_cancelling_nothing_harms_nothing():
    async with patient_of() as patient:
        pid = await patient.pid()
        assert patient.executor.stoppable
        patient.executor.cancel()
        assert await patient.pid() == pid


@pytest.mark.parametrize("deep", [False, True])
async def test_what_left_its_group_ends_with_its_session(deep):
    async with patient_of() as patient:
        pid = await patient.pid()
        escaped = await patient.do(do="escape", deep=deep)
        assert alive(escaped)
        family = descendants(pid)
        assert len(family) > 1
        await patient.close()
        await gone(pid, escaped, *family)


async def test_a_fork_bomb_is_ended_as_a_whole():
    async with patient_of(process_children=30) as patient:
        pid = await patient.pid()
        _, error = await patient.step(do="multiply", times=400)
        assert type(error) is EnvironmentCrashed
        assert "process_children" in error.message
        await gone(pid, *group_of(pid))
        assert (await patient.reset())[1] is None


async def test_threads_count_too_and_a_few_are_nobodys_business():
    async with patient_of(process_children=30) as patient:
        assert (await patient.reset())[1] is None
        _, error = await patient.step(do="start_threads", count=60)
        assert "process_children" in error.message


async def test_memory_without_end_ends_where_its_limit_is():
    async with patient_of(process_memory_mb=400) as patient:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, error = await patient.step(do="allocate")
        assert type(error).__name__ == "MemoryError" or isinstance(error, EnvironmentCrashed)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


async def test_cpu_without_end_ends_where_its_limit_is():
    async with patient_of(process_cpu_s=1) as patient:
        _, error = await patient.step(do="spin")
        assert type(error) is EnvironmentCrashed
        assert error.signal == "SIGXCPU"


@pytest.mark.parametrize("stream", [1, 2])
async def test_output_without_end_blocks_nobody_and_is_not_kept(stream):
    async with patient_of() as patient:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert await patient.do(do="chatter", stream=stream, megabytes=100) is None
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


async def test_a_file_ends_where_its_limit_is():
    async with patient_of(process_output_mb=2) as patient:
        assert await patient.do(do="write_file") == 27  # EFBIG


async def test_limits_bind_before_the_environment_is_made():
    async with patient_of(process_files=64, process_output_mb=3) as patient:
        assert await patient.do(do="limits") == {"RLIMIT_NOFILE": 64, "RLIMIT_FSIZE": 3 * 1024 * 1024}


@pytest.mark.slow
async def test_a_reply_over_the_limit_is_not_read():
    async with patient_of(process_output_mb=1) as patient:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, error = await patient.step(do="say", size=200_000_000)
        assert type(error) is EnvironmentCrashed
        assert "process_output_mb" in error.message
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
        assert (await patient.reset())[1] is None


@pytest.mark.parametrize(("size", "said"), [(10, "cannot be read"), (2**32 - 1, "process_output_mb")])
async def test_a_process_that_lies_is_ended(size, said):
    async with patient_of() as patient:
        pid = await patient.pid()
        _, error = await patient.step(do="shout", size=size)
        assert type(error) is EnvironmentCrashed
        assert said in error.message
        await gone(pid)


async def test_a_process_that_hangs_up_is_ended():
    async with patient_of() as patient:
        pid = await patient.pid()
        _, error = await patient.step(do="hang_up")
        assert type(error) is EnvironmentCrashed
        await gone(pid)


async def test_a_constructor_that_fails_is_its_sessions_failure():
    async with pool_of(Failing) as pool:
        patient = Patient(pool)
        error = await patient.start()
        assert (type(error).__name__, str(error)) == ("ValueError", "no licence")
        await patient.close()
    for how, words in (("exit", "exit code 3"), ("kill", "SIGKILL")):
        async with pool_of(Failing, how) as pool:
            patient = Patient(pool)
            error = await patient.start()
            assert type(error) is EnvironmentCrashed
            assert words in error.message
            assert "gives up" in error.stderr
            assert await patient.close() == (None, None)


@pytest.mark.parametrize("environment", [Closing, AsyncClosing, LoopClosing])
async def test_close_closes_the_environment_and_then_ends_its_process(tmp_path, environment):
    async with pool_of(environment, str(tmp_path / "note")) as pool:
        patient = Patient(pool)
        assert await patient.start() is None
        pid = await patient.pid()
        assert await patient.close() == (None, None)
        assert (tmp_path / "note").read_text() == "closed"
        assert not alive(pid)


async def test_a_close_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("openenv.runtime.process.executor.CLOSE_S", 0.2)
    async with pool_of(Closing, str(tmp_path / "note"), "hang") as pool:
        patient = Patient(pool)
        assert await patient.start() is None
        pid = await patient.pid()
        _, error = await patient.close()
        assert "close()" in str(error)
        assert not alive(pid)


@pytest.mark.parametrize(("then", "words"), [("fail", "no such door"), ("segfault", "SIGSEGV")])
async def test_a_close_that_fails_is_said(tmp_path, then, words):
    async with pool_of(Closing, str(tmp_path / "note"), then) as pool:
        patient = Patient(pool)
        assert await patient.start() is None
        pid = await patient.pid()
        _, error = await patient.close()
        assert words in str(error)
        assert not alive(pid)


async def test_a_process_holds_nothing_of_others_and_no_secrets(monkeypatch):
    monkeypatch.setenv("OPENENV_API_KEYS", "control:secret")
    async with pool_of(process_pool=3) as pool:
        patients = [Patient(pool) for _ in range(3)]
        for patient in patients:
            assert await patient.start() is None
        # stdin, stdout, stderr and its channel
        assert [await patient.do(do="descriptors") for patient in patients] == [4, 4, 4]
        assert await patients[2].do(do="descriptors_of_what_it_starts") == 3
        assert "OPENENV_API_KEYS" not in await patients[0].do(do="variables")


async def test_sessions_draw_different_random_numbers():
    pytest.importorskip("numpy")
    from .dice import Dice

    async with pool_of(Dice) as pool:
        patients = [Patient(pool) for _ in range(3)]
        for patient in patients:
            assert await patient.start() is None
        assert len({await patient.do(do="draw") for patient in patients}) == 3
