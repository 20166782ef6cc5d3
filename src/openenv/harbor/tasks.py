"""Tasks in Harbor's format, and in Terminal-Bench's: folders with an instruction, an image, tests and a solution."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import MissingExtra, UsageError
from ..project.scaffold import whole_or_not_at_all
from ..settings import variable_here
from .models import HarborTaskRef

CONFIG, TERMINAL_BENCH_CONFIG = "task.toml", "task.yaml"
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _PhaseConfig(BaseModel):
    timeout_sec: _Seconds = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None


class _EnvironmentConfig(BaseModel):
    docker_image: str | None = None
    build_timeout_sec: _Seconds = 600.0
    os: str = "linux"
    workdir: str | None = None
    env: dict[str, str] = {}
    memory_mb: int | None = None
    allow_internet: bool = False
    network_mode: str = "no-network"


class _TaskConfig(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    agent: _PhaseConfig = _PhaseConfig()
    verifier: _PhaseConfig = _PhaseConfig()
    environment: _EnvironmentConfig = _EnvironmentConfig()
    solution: dict[Literal["env"], dict[str, str]] = {}
    steps: list[Any] = []

    @model_validator(mode="after")
    def supported(self) -> _TaskConfig:
        if self.steps:
            raise ValueError("[[steps]]: a task of several steps does not run here: split it into tasks")
        if self.environment.os.lower() != "linux":
            raise ValueError(f"environment.os is {self.environment.os!r}: only linux tasks run here")
        return self


class _TerminalBenchConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    instruction: str
    max_agent_timeout_sec: _Seconds = 360.0
    max_test_timeout_sec: _Seconds = 60.0


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task as its folder declares it.

    Attributes:
        folder: Its folder.
        name: The name of that folder.
        title: The name that `task.toml` gives it.
        kind: The format.
        instruction: What the agent is asked to do.
        context: Folder with the Dockerfile and the files that it copies.
        image: A ready image, in place of the Dockerfile.
        tests: Files of the verifier, by their names below `/tests`; `test_script` is the one that runs.
        solution: Files of the oracle, by their names below `/solution`; `solution_script` is the one that runs.
        agent_timeout_s, verifier_timeout_s, build_timeout_s: Seconds for each.
        variables, verifier_variables, solution_variables: Environment variables as written there, so `${NAME}` stands
            for a variable of this process.
        agent_user, verifier_user: Users in the sandbox; None: its ordinary one.
        workdir: Folder in which commands start; None: that of the image.
        memory_mb: MiB of memory; None: no word about it.
        needs_network: Whether it asks for a network.
        metadata: Further facts: difficulty, tags.
    """

    folder: Path
    name: str
    title: str
    kind: Literal["harbor", "terminal-bench"]
    instruction: str
    context: Path
    tests: dict[str, Path]
    test_script: str
    solution: dict[str, Path]
    solution_script: str
    image: str | None = None
    agent_timeout_s: float = 600.0
    verifier_timeout_s: float = 600.0
    build_timeout_s: float = 600.0
    variables: dict[str, str] = field(default_factory=dict)
    verifier_variables: dict[str, str] = field(default_factory=dict)
    solution_variables: dict[str, str] = field(default_factory=dict)
    agent_user: str | None = None
    verifier_user: str | None = None
    workdir: str | None = None
    memory_mb: int | None = None
    needs_network: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    def check_tests(self) -> None:
        """Raises `UsageError` if nothing scores the task."""
        if self.test_script not in self.tests:
            raise UsageError(f"task {self.name} has no tests/{self.test_script}: nothing can score it")

    @classmethod
    def read(cls, folder: Path) -> HarborTask:
        """Reads the task in a folder. Nothing of it runs.

        Raises:
            UsageError: There is no task, or a field of it is invalid; the message names the field.
        """
        if (folder / CONFIG).is_file():
            return _read_harbor(folder)
        if (folder / TERMINAL_BENCH_CONFIG).is_file():
            return _read_terminal_bench(folder)
        raise UsageError(f"{folder} has neither {CONFIG} nor {TERMINAL_BENCH_CONFIG}: name the folder of a task")


def task_name(folder: str | Path) -> str:
    """The name of a task: that of its folder."""
    return Path(folder).resolve().name


def _read_harbor(folder: Path) -> HarborTask:
    try:
        config = _TaskConfig.model_validate(tomllib.loads(_text(folder / CONFIG)))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(f"{folder / CONFIG}: {_reason(error)}") from None
    agent, verifier, environment = config.agent, config.verifier, config.environment
    return HarborTask(
        folder=folder,
        name=task_name(folder),
        title=str(config.task.get("name") or task_name(folder)),
        kind="harbor",
        instruction=_text(folder / "instruction.md"),
        context=folder / "environment",
        image=environment.docker_image,
        tests=_files(folder, folder / "tests"),
        test_script="test.sh",
        solution=_files(folder, folder / "solution"),
        solution_script="solve.sh",
        agent_timeout_s=agent.timeout_sec,
        verifier_timeout_s=verifier.timeout_sec,
        build_timeout_s=environment.build_timeout_sec,
        variables=environment.env,
        verifier_variables=verifier.env,
        solution_variables=config.solution.get("env", {}),
        agent_user=None if agent.user is None else str(agent.user),
        verifier_user=None if verifier.user is None else str(verifier.user),
        workdir=environment.workdir,
        memory_mb=environment.memory_mb,
        needs_network=environment.allow_internet or environment.network_mode != "no-network",
        metadata=config.metadata,
    )


def _read_terminal_bench(folder: Path) -> HarborTask:
    path = folder / TERMINAL_BENCH_CONFIG
    try:
        config = _TerminalBenchConfig.model_validate(yaml.safe_load(_text(path)))
    except (yaml.YAMLError, ValidationError) as error:
        raise UsageError(f"{path}: {_reason(error)}") from None
    context, variables, workdir, image = _compose(folder)
    beside = {name: folder / name for name in ("run-tests.sh",) if (folder / name).is_file()}
    solution = {name: folder / name for name in ("solution.sh",) if (folder / name).is_file()}
    return HarborTask(
        folder=folder,
        name=task_name(folder),
        title=task_name(folder),
        kind="terminal-bench",
        instruction=config.instruction,
        context=context,
        image=image,
        tests={**_files(folder, folder / "tests"), **beside},
        test_script="run-tests.sh",
        solution=solution,
        solution_script="solution.sh",
        agent_timeout_s=config.max_agent_timeout_sec,
        verifier_timeout_s=config.max_test_timeout_sec,
        variables=variables,
        workdir=workdir,
        metadata={
            name: value for name, value in (config.model_extra or {}).items() if name in {"difficulty", "tags"}
        },
    )


def _compose(folder: Path) -> tuple[Path, dict[str, str], str | None, str | None]:
    """Build context, variables, folder and image of the only service of a task, as docker-compose.yaml has them."""
    path = folder / "docker-compose.yaml"
    if not path.is_file():
        return folder, {}, None, None
    try:
        services = (yaml.safe_load(_text(path)) or {}).get("services") or {}
        names = ", ".join(services)
        if len(services) != 1:
            raise UsageError(f"{path} has the services {names or '(none)'}: tasks of one service run here")
        (service,) = services.values()
        build = service.get("build")
        context = build.get("context", ".") if isinstance(build, dict) else build
        given = service.get("environment") or {}
        if isinstance(given, list):
            given = dict(str(pair).partition("=")[::2] for pair in given)
    except (yaml.YAMLError, AttributeError) as error:
        raise UsageError(f"{path}: {_reason(error)}") from None
    # Variables and folders of Terminal-Bench's own runner are what `openenv.harbor` sets for every task.
    variables = {name: str(value) for name, value in given.items() if "T_BENCH" not in str(value)}
    workdir = service.get("working_dir")
    return folder / (context or "."), variables, workdir, None if build else service.get("image")


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
    return " ".join(str(error).split())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path.parent} has no {path.name}: add the file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _files(task: Path, folder: Path) -> dict[str, Path]:
    """The files below a folder, by their relative names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.resolve().is_relative_to(task.resolve()):
            raise UsageError(f"{path} leads out of the task: a task consists of its own files")
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.resolve()
    return found


def resolve_task_dirs(spec: str | Path, *, refresh: bool = False, tqdm_class: Any = None) -> list[Path]:
    """The folders of the tasks of a dataset, in the order of their names.

    Args:
        spec: The folder of a task, a folder of tasks, or `org/name`: a dataset of the Hub, which is downloaded.
        refresh: Whether to download it again; else it is downloaded once.
        tqdm_class: Class of the progress bar of a download; None: the one of huggingface_hub.

    Raises:
        UsageError: There are no tasks.
        MissingExtra: It is on the Hub, and huggingface-hub is not installed.
    """
    folder = Path(spec).expanduser()
    if not folder.is_dir() and str(spec).count("/") == 1 and "@" not in str(spec):
        folder = _downloaded(str(spec), refresh, tqdm_class)
    if _is_task(folder):
        return [folder]
    found = sorted(child for child in folder.iterdir() if _is_task(child)) if folder.is_dir() else []
    if not found and (folder / "tasks").is_dir():
        found = sorted(child for child in (folder / "tasks").iterdir() if _is_task(child))
    if not found:
        raise UsageError(
            f"{spec} has no tasks: name a folder with folders that have {CONFIG} (or {TERMINAL_BENCH_CONFIG}), "
            "or a dataset of the Hub as ORG/NAME"
        )
    return found


def _is_task(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or (folder / TERMINAL_BENCH_CONFIG).is_file()


def _downloaded(name: str, refresh: bool, progress: Any) -> Path:
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise MissingExtra("huggingface-hub", "hub") from None
    # Files of its own: those of the Hub's cache are links, and a task must not have links out of its folder.
    folder = Path(constants.HF_HUB_CACHE) / "openenv-tasks" / name
    if folder.is_dir() and not refresh:
        return folder
    try:
        with whole_or_not_at_all(folder) as part:
            snapshot_download(
                name,
                repo_type="dataset",
                local_dir=part,
                endpoint=variable_here("HF_ENDPOINT"),
                tqdm_class=progress,
            )
            shutil.rmtree(folder, ignore_errors=True)
        return folder
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        if not refresh and folder.is_dir():  # another process was faster
            return folder
        reason = str(error).splitlines()[0]
        raise UsageError(f"{name} is no folder here, and the Hub does not give that dataset: {reason}") from None


def prefetch(datasets: Sequence[str]) -> None:
    """Downloads the datasets that are not here yet. Raises as `resolve_task_dirs`."""
    for spec in datasets:
        resolve_task_dirs(spec)


def read_instruction(task_dir: str | Path, *, limit: int = 4000, spec: str | None = None) -> str:
    """What a task asks the agent to do, or the first `limit` characters of that. Raises UsageError without a task."""
    return HarborTask.read(Path(task_dir)).instruction[:limit]


class HarborTaskProvider:
    """The tasks of datasets, as the Task API has them: a split is a dataset, and a task its number in name order.

    Args:
        datasets: Folders or datasets, as for `resolve_task_dirs`.
    """

    def __init__(self, datasets: Sequence[str] | None = None):
        self._folders: dict[str, list[Path]] = {}
        self.datasets = [str(spec) for spec in datasets or ()]

    def list_splits(self) -> list[str]:
        """The datasets."""
        return list(self.datasets)

    def num_tasks(self, split: str) -> int:
        """How many tasks a dataset has. Raises UsageError if there is no such dataset."""
        return len(self._tasks(split))

    def list_tasks(self, split: str) -> list[HarborTaskRef]:
        """All tasks of a dataset, in the order of their names."""
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> HarborTaskRef:
        """One task, counted from 0. Raises UsageError if there is none."""
        task = HarborTask.read(self.task_dir(split, index))
        return HarborTaskRef(
            index=index, task_id=task.name, task_name=task.title, dataset=split, instruction=task.instruction
        )

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[HarborTaskRef]:
        """The tasks from `start` up to `stop`, in the sense of a slice."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

    def task_dir(self, split: str, index: int) -> Path:
        """The folder of a task. Raises UsageError if there is none."""
        tasks = self._tasks(split)
        if not 0 <= index < len(tasks):
            raise UsageError(f"{split} has the tasks 0 to {len(tasks) - 1}, not {index}")
        return tasks[index]

    def _tasks(self, split: str) -> list[Path]:
        if split not in self.datasets:
            raise UsageError(f"no dataset {split!r}: choose one of {', '.join(self.datasets) or '(none)'}")
        if split not in self._folders:
            self._folders[split] = resolve_task_dirs(split)
        return self._folders[split]
