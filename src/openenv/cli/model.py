"""What the commands that play with a model have in common: its options, the server of the target, and progress."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from .. import errors
from .bench import SPARE_SESSIONS
from .terminal import COUNT, ProgressBar, is_address, together, yaml_pairs

if TYPE_CHECKING:
    from ..evals.evaluation import CaseChoice
    from ..evals.server import EvalServer, LocalEvalServer
    from ..rollouts.engine import RolloutRun
    from ..rollouts.groups import RolloutBudget, RolloutProgress
    from ..rollouts.model import Model, Sampling
    from ..rollouts.records import RolloutGroup, RolloutTask

T = TypeVar("T")
# Seconds between two progress notes.
LOOK_S = 0.2
RANDOM = "random"
RUN_FILE = "run.json"
PROVIDERS = ("openai", "responses", "anthropic")
# In the error of a server that allows one session only.
_EXCLUSIVE = "does not support concurrent sessions"

model_options = together(
    click.option("--model", metavar="NAME", help="Model that plays; `random` calls random tools."),
    click.option(
        "--base-url",
        "base_urls",
        multiple=True,
        metavar="URL",
        show_default="the provider's own",
        help="URL of the model's API; repeat it for several endpoints.",
    ),
    click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        default=PROVIDERS[0],
        show_default=True,
        help="The API: chat completions (also of vLLM, SGLang, llama.cpp), OpenAI's responses, or messages.",
    ),
    click.option(
        "--sampling",
        multiple=True,
        metavar="NAME=VALUE",
        help="temperature, top_p, stop, max_tokens (of a completion), or another field of requests; may be repeated.",
    ),
    click.option(
        "--budget",
        multiple=True,
        metavar="NAME=NUMBER",
        help="Limit of an episode: turns (20), tokens, context, seconds, cost, invalid (actions); may be repeated.",
    ),
    click.option("--price", metavar="IN,OUT", help="Price of a million tokens of prompts, and of completions."),
)

case_options = together(
    click.option("--split", help="Play each task of this split."),
    click.option(
        "--episodes", type=COUNT, show_default="one for each seed or task, else 100", help="Number of episodes."
    ),
    click.option("--seeds", metavar="RANGE", help="Seeds, one episode each: 0-199, or 1,2,5, or both (0-9,20)."),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Number that seeds are derived from if there are no --seeds.",
    ),
)
play_options = together(
    click.option("--concurrency", type=COUNT, default=64, show_default=True, help="Concurrent episodes."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1),
        default=60.0,
        show_default=True,
        help="Time limit of a step, in seconds.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        help="Repetitions of an episode that failed because of the infrastructure.",
    ),
    click.option(
        "--workers", type=COUNT, default=1, show_default=True, help="Worker processes of the started server."
    ),
    click.option("--api-key", help="API key for the server, if TARGET is an address. [OPENENV_API_KEY]"),
)


def model_of(name: str, base_urls: Sequence[str], provider: str, price: str | None = None) -> Model:
    """The model of `model_options`.

    Raises:
        UsageError: There is no key for the provider's own endpoint, or the price is not two numbers.
    """
    from ..rollouts.offline_models import RandomModel

    if name == RANDOM:
        return RandomModel()
    from ..rollouts.endpoint_model import ModelPrice
    from ..rollouts.vendor_models import create_model
    from ..settings import ModelSettings

    key = ModelSettings.read().key_for(provider)
    if not base_urls and key is None:
        raise errors.UsageError(
            f"there is no endpoint for {name}: give its URL (--base-url http://localhost:8000/v1), or for the "
            f"provider's own a key ({ModelSettings.variables()})"
        )
    prices = {}
    if price is not None:
        try:
            prices = {name: ModelPrice(*map(float, price.split(",")))}
        except (TypeError, ValueError):
            raise errors.InvalidArgument(
                f"--price {price}: give the prices of a million tokens of prompts and of completions, such as 0.5,1.5"
            ) from None
    return create_model(name, list(base_urls) or None, provider, api_key=key, prices=prices)


def sampling_of(texts: Sequence[str]) -> Sampling:
    """The sampling of `--sampling` options."""
    from ..rollouts.model import Sampling

    given = yaml_pairs("--sampling", texts)
    named = {each.name for each in fields(Sampling)} - {"extra"}
    stop = given.get("stop")
    given |= {"stop": (stop,)} if isinstance(stop, str) else {}
    known = {name: value for name, value in given.items() if name in named}
    return Sampling(**known, extra={name: value for name, value in given.items() if name not in named})


def budget_of(texts: Sequence[str]) -> RolloutBudget:
    """The budget of `--budget` options; `turns=none` removes the limit.

    Raises:
        UsageError: There is no such limit, or it is not a number.
    """
    from ..rollouts.groups import RolloutBudget

    given = yaml_pairs("--budget", texts)
    names = [each.name for each in fields(RolloutBudget)]
    for name in given.keys() - set(names):
        raise errors.InvalidArgument(f"--budget {name}: the limits are {', '.join(names)}")
    return RolloutBudget(**{name: None if value == "none" else value for name, value in given.items()})


def evaluated_server(
    stack: ExitStack, target: str, workers: int, concurrency: int, api_key: str | None
) -> tuple[EvalServer, LocalEvalServer | None]:
    """The server at an address, or one that serves a target until the stack exits."""
    from ..evals.server import EvalServer, LocalEvalServer
    from ..settings import ClientSettings

    if is_address(target):
        return EvalServer(target, api_key or ClientSettings.read().api_key), None
    click.echo(f"serving {target}", err=True)
    sessions = 1 if concurrency == 1 else concurrency + SPARE_SESSIONS
    try:
        here = stack.enter_context(LocalEvalServer(target, workers, max_sessions=sessions))
    except errors.LaunchFailed as error:
        said = error.message.splitlines()
        if len(said) != 2 or not said[1].startswith("error: "):
            raise
        more = "; or play one episode at a time: --concurrency 1" if _EXCLUSIVE in said[1] else ""
        raise errors.LaunchFailed(said[1].removeprefix("error: ") + more) from None
    return EvalServer(here.url), here


def begin_run(
    served: EvalServer,
    model: Model,
    tasks: Sequence[RolloutTask],
    *,
    concurrency: int,
    timeout_s: float,
    **options: Any,
) -> RolloutRun:
    """A run of `rollouts` with the server of a command. Must be called on the event loop."""
    from ..evals.server import WAIT_S
    from ..rollouts.engine import rollouts

    server: dict[str, Any] = {"api_key": served.api_key, "message_timeout_s": timeout_s, "wait_s": WAIT_S}
    return rollouts(served.url, model, tasks, sessions=concurrency, requests=concurrency, **server, **options)


async def consume(
    begin: Callable[[], RolloutRun],
    progress: RolloutProgress,
    on_group: Callable[[RolloutGroup], None] = lambda group: None,
) -> None:
    """Plays a run to its end.

    Args:
        begin: Makes the run.
        progress: Counts what the run does.
        on_group: Takes each group; it counts as used when this returns.
    """
    async with begin() as run:
        run.progress = progress
        async for group in run:
            on_group(group)


def run_watched(
    work: Coroutine[Any, Any, T], model: Model, here: LocalEvalServer | None, look: Callable[[], None]
) -> T:
    """Runs a coroutine on a new event loop, and calls `look` meanwhile.

    Args:
        work: The work. It is cancelled, and has ended, when this raises.
        model: The model, which is closed at the end.
        here: The server that must live meanwhile.
        look: Called every fraction of a second.

    Raises:
        LaunchFailed: The server exited.
        KeyboardInterrupt: Ctrl-C.
    """

    from ..settings import ModelSettings

    async def checked() -> T:
        try:
            await _check_endpoint(model)
            return await (work if here is None else here.beside(work))
        except errors.ModelFailed as error:
            if error.status not in {401, 403}:
                raise
            raise errors.Unauthorized(f"{error.message}: set one of {ModelSettings.variables()}") from None
        finally:
            work.close()

    async def watch() -> T:
        task = asyncio.ensure_future(checked())
        try:
            while not task.done():
                look()
                await asyncio.wait({task}, timeout=LOOK_S)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await model.aclose()
        return task.result()

    return asyncio.run(watch())


async def _check_endpoint(model: Model) -> None:
    """Finds an address where no endpoint is before the first rollout waits for retries. Anything else is found by
    requests: endpoints may have no list of models, or accept other names."""
    from ..rollouts.endpoint_model import EndpointModel

    if isinstance(model, EndpointModel):
        try:
            await model.check()
        except errors.ModelFailed as error:
            if error.status is None and isinstance(error, errors.ModelUnavailable):
                raise errors.ModelUnavailable(
                    f"{error.message}; give the URL of the model's API (--base-url)"
                ) from None


def progress_facts(progress: RolloutProgress) -> dict[str, Any]:
    """What a run has done, as JSON."""
    usage = progress.usage
    return {
        "rollouts": sum(progress.outcomes.values()),
        "outcomes": {str(outcome): count for outcome, count in progress.outcomes.most_common()},
        "errors": dict(progress.errors.most_common()),
        "mean_return": progress.total_reward / progress.rewarded if progress.rewarded else None,
        "with_return": progress.rewarded,
        "turns": progress.turns,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
        "retries": progress.retries,
    }


def run_facts(
    model: Model, choice: CaseChoice, group_size: int, sampling: Sampling, budget: RolloutBudget
) -> dict[str, Any]:
    """What a run must have in common with the one in its folder. The number of episodes may grow."""
    chosen = {name: value for name, value in asdict(choice).items() if name not in {"episodes", "repeats"}}
    options = {"sampling": asdict(sampling), "budget": asdict(budget)}
    return {"model": model.name, "group_size": group_size, **chosen, **options}


def check_run_file(folder: Path, facts: Mapping[str, Any]) -> None:
    """Checks that the run of a folder, if there is one, has these options.

    Raises:
        JournalMismatch: It has others.
    """
    path = folder / RUN_FILE
    if not path.exists():
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except ValueError:
        raise errors.JournalMismatch(f"{path} is not readable: restore it, or choose another folder") from None
    for name, value in json.loads(json.dumps(facts)).items():
        if known.get(name) != value:
            raise errors.JournalMismatch(
                f"{folder} has a run with {name.replace('_', ' ')} {known.get(name)!r}, not {value!r}: choose "
                "another folder (-o), or repeat the options of that run"
            )


def write_run_file(folder: Path, facts: Mapping[str, Any]) -> None:
    """Notes the options of a new run in its folder; checks those of an older one.

    Raises:
        JournalMismatch: The older run has other options.
        UsageError: The folder cannot be written.
    """
    check_run_file(folder, facts)
    from ..recording.storage import replace_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replace_file(folder / RUN_FILE) as part:
            part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise errors.UsageError(f"{folder} cannot be written: {error.strerror}; choose another folder (-o)") from None


class RateNote:
    """The note beside a progress bar: rates since it was made, and results.

    Args:
        progress: What the run does, and what it had done before.
        planned: Number of rollouts to play.
    """

    def __init__(self, progress: RolloutProgress, planned: int):
        self._progress = progress
        self._planned = planned
        self._began = time.monotonic()
        self._before = self._done, progress.usage.completion_tokens

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return max(time.monotonic() - self._began, 1e-9)

    def show(self, bar: ProgressBar) -> None:
        """Shows the progress so far."""
        bar.show("rollouts", self._done, self._planned, str(self))

    def __str__(self) -> str:
        progress, done, seconds = self._progress, self._done, self.seconds
        tokens = progress.usage.completion_tokens - self._before[1]
        said = [f"{done:,} of {self._planned:,}", f"{(done - self._before[0]) / seconds:.3g}/s"]
        said += [f"{tokens / seconds:,.0f} tokens/s"] if tokens else []
        said += [f"mean return {progress.total_reward / progress.rewarded:.4g}"] if progress.rewarded else []
        said += [f"cost {progress.usage.cost:.4g}"] if progress.usage.cost is not None else []
        return ", ".join([*said, *errors_text(progress.errors)])

    @property
    def _done(self) -> int:
        return sum(self._progress.outcomes.values())


def errors_text(errors: Mapping[str, int]) -> list[str]:
    """Errors with their numbers, the most frequent first."""
    return [f"{count:,} {name}" for name, count in sorted(errors.items(), key=lambda each: -each[1])]
