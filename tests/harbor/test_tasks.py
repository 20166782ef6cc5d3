"""Tasks are read from their folders, in both formats; what is wrong with one is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.harbor.tasks import HarborTask, HarborTaskProvider, read_instruction, resolve_task_dirs

from .written import write_task, write_terminal_bench_task

TASKS = Path(__file__).parent / "tasks"
FULL = """
schema_version = "1.4"
[task]
name = "team/full"
[metadata]
difficulty = "hard"
[agent]
timeout_sec = 5
user = "agent"
[verifier]
timeout_sec = 6
[verifier.env]
MODE = "strict"
[environment]
docker_image = "debian:12"
memory_mb = 256
workdir = "/srv"
network_mode = "no-network"
[environment.env]
CITY = "${CITY:-Delft}"
[solution.env]
KEY = "x"
"""


def test_a_task_has_what_its_folder_says(tmp_path: Path) -> None:
    task = HarborTask.read(write_task(tmp_path / "full", toml=FULL))
    assert (task.name, task.title, task.kind) == ("full", "team/full", "harbor")
    assert (task.agent_timeout_s, task.verifier_timeout_s, task.build_timeout_s) == (5, 6, 600)
    assert (task.image, task.workdir, task.memory_mb) == ("debian:12", "/srv", 256)
    assert (task.agent_user, task.verifier_user) == ("agent", None)
    assert task.variables == {"CITY": "${CITY:-Delft}"}
    assert task.verifier_variables == {"MODE": "strict"}
    assert task.solution_variables == {"KEY": "x"}
    assert task.metadata == {"difficulty": "hard"}
    assert list(task.tests) == ["test.sh"]
    assert not task.needs_network
    online = FULL.replace("no-network", "public")
    assert HarborTask.read(write_task(tmp_path / "online", toml=online)).needs_network


def test_a_task_of_terminal_bench_is_read_too(tmp_path: Path) -> None:
    compose = "services:\n  client:\n    build: .\n    working_dir: /srv\n    environment:\n"
    compose += "      - TEST_DIR=${T_BENCH_TEST_DIR}\n      - CITY=Delft\n"
    task = HarborTask.read(write_terminal_bench_task(tmp_path / "old", compose=compose))
    assert (task.kind, task.instruction, task.metadata) == (
        "terminal-bench",
        "Write /app/result.txt.\n",
        {"difficulty": "easy"},
    )
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (30, 60)
    assert (task.variables, task.workdir) == ({"CITY": "Delft"}, "/srv")
    assert sorted(task.tests) == ["run-tests.sh", "test_result.sh"]
    assert task.context.samefile(tmp_path / "old")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"toml": "[agent\n"}, "task.toml: Expected ']'"),
        ({"toml": "[agent]\ntimeout_sec = -1\n"}, "task.toml: agent.timeout_sec: Input should be greater than 0"),
        ({"toml": "[[steps]]\nname = 'one'\n"}, "a task of several steps does not run here"),
        ({"toml": "[environment]\nos = 'windows'\n"}, "environment.os is 'windows': only linux tasks run here"),
        ({"toml": None}, "has neither task.toml nor task.yaml"),
        ({"instruction": None}, "has no instruction.md: add the file"),
    ],
)
def test_a_faulty_task_is_refused_in_one_sentence(
    tmp_path: Path, files: dict[str, str | None], sentence: str
) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$") as caught:
        HarborTask.read(write_task(tmp_path, **files))
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"yaml": "difficulty: easy\n"}, "task.yaml: instruction: Field required"),
        ({"compose": "services:\n  a: {build: .}\n  b: {image: x}\n"}, "has the services a, b: tasks of one service"),
        ({"compose": "services: [\n"}, "docker-compose.yaml: while parsing"),
        ({"compose": "- a\n"}, "docker-compose.yaml: "),
    ],
)
def test_so_is_one_of_terminal_bench(tmp_path: Path, files: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        HarborTask.read(write_terminal_bench_task(tmp_path, **files))
    assert sentence in caught.value.message


def test_a_link_that_leads_out_of_a_task_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    (tmp_path / "secret").write_text("key")
    (folder / "tests" / "data").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="leads out of the task"):
        HarborTask.read(folder)


def test_a_dataset_is_a_folder_of_tasks_in_name_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / "tasks" / name)
    (tmp_path / "tasks" / "notes").mkdir()
    expected = [tmp_path / "tasks" / "a", tmp_path / "tasks" / "b"]
    assert resolve_task_dirs(tmp_path) == resolve_task_dirs(tmp_path / "tasks") == expected
    assert resolve_task_dirs(expected[1]) == expected[1:]
    with pytest.raises(UsageError, match="has no tasks: name a folder"):
        resolve_task_dirs(tmp_path / "tasks" / "notes")
    with pytest.raises(UsageError, match=r"terminal-bench@2\.0 has no tasks"):
        resolve_task_dirs("terminal-bench@2.0")


def test_the_task_api_counts_tasks_from_0() -> None:
    provider = HarborTaskProvider([str(TASKS)])
    (split,) = provider.list_splits()
    assert provider.num_tasks(split) == len(provider.list_tasks(split)) == 20
    first = provider.get_task(split, 0)
    assert (first.index, first.task_id, first.task_name) == (0, "active-emails", "openenv/active-emails")
    assert first.instruction == read_instruction(provider.task_dir(split, 0))
    assert [each.index for each in provider.get_task_range(split, -2)] == [18, 19]
    with pytest.raises(UsageError, match="has the tasks 0 to 19, not 20"):
        provider.get_task(split, 20)
    with pytest.raises(UsageError, match="no dataset 'other': choose one of"):
        provider.num_tasks("other")
