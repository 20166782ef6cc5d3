"""The solution of a task scores 1 and doing nothing 0, in the process sandbox; every fault is a sentence."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from openenv.agents import AgentProgram, CommandResult, Sandbox
from openenv.cli.main import app
from openenv.errors import UsageError
from openenv.harbor.checks import check_task
from openenv.harbor.sandboxes import layout_of
from openenv.harbor.tasks import HarborTask
from openenv.harbor.trial import Agent, TrialResult, program_agent, run_trial

from .written import TEST, write_task, write_terminal_bench_task

TASKS = sorted((Path(__file__).parent / "tasks").iterdir())
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_a_solution_scores_1_and_doing_nothing_0(folder: Path) -> None:
    check = asyncio.run(check_task(folder))
    assert check.faults == []
    assert (check.oracle, check.nothing) == (1.0, 0.0)


def test_a_task_of_terminal_bench_is_scored_by_its_exit_code(tmp_path: Path) -> None:
    check = asyncio.run(check_task(write_terminal_bench_task(tmp_path)))
    assert check.faults == []
    assert (check.oracle, check.nothing) == (1.0, 0.0)


def writes(name: str, text: str) -> str:
    return f"#!/bin/sh\nprintf '%s' '{text}' > /logs/verifier/{name}\n"


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({"test": None}, ["has no tests/test.sh: nothing can score it"]),
        ({"solve": None}, ["has no solution: add solution/solve.sh"]),
        (
            {"solve": "#!/bin/sh\necho broken >&2\nexit 3\n"},
            ["the solution ended with exit code 3: broken", "the solution scores 0, not 1"],
        ),
        ({"test": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"}, ["doing nothing scores 1, not 0"]),
        ({"test": "#!/bin/sh\n"}, ["the verifier wrote no reward: its test.sh must write /logs/verifier/reward.txt"]),
        ({"test": writes("reward.txt", "nan")}, ["the verifier wrote no finite number to reward.txt: 'nan'"]),
        ({"test": writes("reward.txt", "")}, ["the verifier wrote no finite number to reward.txt: ''"]),
        ({"test": writes("reward.json", '{"a": true}')}, ["the verifier wrote no finite number to reward.json"]),
        ({"test": writes("reward.json", '{"a": 1, "b": 0}')}, ["wrote the rewards a, b, and no 'reward'"]),
        ({"test": "#!/bin/sh\nkill -9 $$\n"}, ["was killed by signal 9: no reward"]),
        (
            {"toml": "[agent]\ntimeout_sec = 0.5\n", "solve": "#!/bin/sh\nsleep 60\n"},
            ["the solution did not end within 0.5 s, the time of the agent"],
        ),
        (
            {"toml": "[verifier]\ntimeout_sec = 0.5\n", "test": "#!/bin/sh\nsleep 60\n"},
            ["did not end within 0.5 s"],
        ),
        ({"toml": "[agent\n"}, ["task.toml: Expected ']'"]),
        (
            {"dockerfile": "FROM debian:12\nRUN apt-get install -y jq\n"},
            ["line 2 of its Dockerfile is `RUN apt-get install -y jq`, and only files are copied there"],
        ),
        ({"toml": "[solution.env]\nKEY = '${NOT_SET_ANYWHERE}'\n"}, ["set NOT_SET_ANYWHERE"]),
    ],
)
def test_each_fault_is_one_sentence(tmp_path: Path, files: dict[str, str | None], faults: list[str]) -> None:
    check = asyncio.run(check_task(write_task(tmp_path, **files)))
    assert len(check.faults) == len(faults), check.faults
    for fault, expected in zip(check.faults, faults, strict=True):
        assert expected in fault
        assert "\n" not in fault


def test_the_command_says_which_task_is_not_sound(tmp_path: Path) -> None:
    write_task(tmp_path / "good")
    write_task(tmp_path / "bad", test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    ended = CliRunner().invoke(app, ["harbor", "check", str(tmp_path)])
    assert ended.exit_code == 1
    assert "ok   good: solution 1, nothing 0" in ended.output
    assert "FAIL bad: solution 1, nothing 1" in ended.output
    assert ended.output.endswith("1 of 2 tasks sound\n")
    as_json = CliRunner().invoke(app, ["harbor", "check", str(tmp_path / "good"), "--json"])
    assert as_json.exit_code == 0
    assert json.loads(as_json.output) == {
        "tasks": [{"task": "good", "oracle": 1.0, "nothing": 0.0, "faults": []}],
        "passed": 1,
        "failed": 0,
    }


# What an agent may leave behind.


def trial(folder: Path, agent: Agent | str, **options: str) -> TrialResult:
    acting = program_agent(AgentProgram(agent)) if isinstance(agent, str) else agent
    return asyncio.run(run_trial(HarborTask.read(folder), acting, **options))


@pytest.mark.parametrize(
    "command",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "mkdir /tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh; chmod 555 /tests",
        "rm -rf /logs/verifier; ln -s /app /logs/verifier; echo 1 > /app/reward.txt",
        "(while :; do echo 1 > /logs/verifier/reward.txt; done) &",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json; chmod 000 /logs/verifier",
        "mkdir -p /home/agent/bin; printf '#!/bin/sh\\necho 1\\n' > /home/agent/bin/cat; exit 0",
    ],
)
def test_no_agent_writes_its_own_reward(tmp_path: Path, command: str) -> None:
    result = trial(write_task(tmp_path), command)
    assert result.error is None
    assert result.reward == 0.0


def test_the_agent_sees_neither_tests_nor_solution(tmp_path: Path) -> None:
    result = trial(write_task(tmp_path), "ls -d /tests /solution; echo $INSTRUCTION; cat /logs/agent/instruction.md")
    assert result.agent is not None
    assert result.agent.stdout == "Write /app/result.txt.\nWrite /app/result.txt.\n"


def test_a_program_that_the_tests_run_and_that_kills_them_gives_no_reward(tmp_path: Path) -> None:
    folder = write_task(tmp_path, test="#!/bin/sh\nsh /app/program.sh\necho 0 > /logs/verifier/reward.txt\n")
    cheat = "echo 'echo 1 > /logs/verifier/reward.txt; kill -9 $PPID' > program.sh"
    result = trial(folder, cheat)
    assert result.reward is None
    assert "was killed by signal 9" in str(result.error)
    second = 'echo \'echo "{\\"reward\\": 1}" > /logs/verifier/reward.json\' > program.sh'
    result = trial(folder, second)
    assert result.reward is None
    assert "other rewards to reward.json than to reward.txt" in str(result.error)


def test_a_late_agent_is_scored_by_what_it_left(tmp_path: Path) -> None:
    folder = write_task(tmp_path, toml="[agent]\ntimeout_sec = 2\n")
    result = trial(folder, "echo done > result.txt; sleep 60")
    assert result.agent is not None
    assert result.agent.timed_out
    assert result.reward == 1.0


def test_one_of_several_rewards_is_chosen(tmp_path: Path) -> None:
    folder = write_task(tmp_path, test=writes("reward.json", '{"tests": 0.5, "style": 1}'))
    result = trial(folder, "true", reward_key="tests")
    assert (result.reward, result.reward_key, result.rewards) == (0.5, "tests", {"tests": 0.5, "style": 1.0})


def test_the_logs_of_a_trial_are_kept(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", test=TEST + "echo checked > /logs/verifier/out.txt\n")

    async def act(sandbox: Sandbox, task: HarborTask) -> CommandResult:
        return await sandbox.run("echo hm > /logs/agent/log; echo a > /logs/artifacts/a", timeout_s=30)

    asyncio.run(run_trial(HarborTask.read(folder), act, folder=tmp_path / "kept"))
    kept = {str(path.relative_to(tmp_path / "kept")): path.read_text() for path in (tmp_path / "kept").rglob("*.*")}
    assert kept == {"verifier/reward.txt": "0\n", "verifier/out.txt": "checked\n"}
    assert (tmp_path / "kept/agent/log").read_text() == "hm\n"
    assert (tmp_path / "kept/artifacts/a").read_text() == "a\n"


# What a Dockerfile copies.


def test_a_dockerfile_that_copies_files_is_laid_out(tmp_path: Path) -> None:
    dockerfile = """
ARG VERSION=3
FROM debian:12-slim
ENV PLACE=/srv/app NAME="Ada L"
WORKDIR $PLACE
COPY --chown=root:root a.txt b/ ./
COPY a.txt renamed.txt
COPY *.txt /texts/
ADD ["a.txt", "/etc/app/"]
EXPOSE 80
CMD ["sleep", "infinity"]
"""
    folder = write_task(tmp_path, dockerfile=dockerfile)
    (folder / "environment/b/c").mkdir(parents=True)
    for name in ("a.txt", "b/c/d.md"):
        (folder / "environment" / name).write_text(name)
    layout = layout_of(HarborTask.read(folder))
    assert layout.workdir == "/srv/app"
    assert layout.variables == {"PLACE": "/srv/app", "NAME": "Ada L"}
    assert [(sorted(files), target) for files, target in layout.copies] == [
        (["a.txt", "c/d.md"], "/srv/app"),
        (["renamed.txt"], "/srv/app"),
        (["a.txt"], "/texts"),
        (["a.txt"], "/etc/app"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("COPY missing.txt .", r"line 2 of its Dockerfile copies \['missing.txt'\], which are not there"),
        ("COPY --from=build /a /a", "only files are copied there; choose the sandbox docker"),
        ("ADD https://example.org/a /a", "only files are copied there"),
        ("USER app", "only files are copied there"),
    ],
)
def test_a_dockerfile_that_does_more_needs_docker(tmp_path: Path, line: str, sentence: str) -> None:
    folder = write_task(tmp_path, dockerfile=f"FROM debian:12-slim\n{line}\n")
    with pytest.raises(UsageError, match=sentence):
        layout_of(HarborTask.read(folder))


def test_a_list_says_where_tasks_run(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    write_task(tmp_path / "b", dockerfile="FROM debian:12\nRUN true\n")
    write_task(tmp_path / "c", toml="[agent\n")
    write_task(tmp_path / "d", test=None)
    ended = CliRunner().invoke(app, ["harbor", "list", str(tmp_path), "--json"])
    rows = json.loads(ended.output)["tasks"]
    assert [row["sandboxes"] for row in rows] == [["process", "docker"], ["docker"], [], []]
    assert "task.toml: Expected ']'" in rows[2]["problem"]
    assert "has no tests/test.sh" in rows[3]["problem"]
    text = CliRunner().invoke(app, ["harbor", "list", str(tmp_path)]).output.splitlines()
    assert [line.split()[1] for line in text] == ["a", "b", "c", "d"]
