"""`openenv collect`: record episodes of a model as the lines of a dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ..errors import InvalidArgument, JournalMismatch, UsageError
from .model import RANDOM, RateNote, begin_run, consume, evaluated_server, model_of, run_watched
from .terminal import COUNT, FOLDER, ProgressBar, complete_target, ended_in_order, message_on_interrupt, plural

if TYPE_CHECKING:
    from ..evals.server import EvalServer
    from ..rollouts.collected import Collection
    from ..rollouts.model import Model
    from ..rollouts.records import RolloutGroup, RolloutTask

SCRIPTED = "scripted"
CONCURRENCY = 16
STEP_S = 60.0
# The folder of the run, inside that of the episodes.
RUN_FOLDER = "rollouts"
# Environments of other packages: the name of a game or dataset follows.
_ELSEWHERE = ("openspiel", "reasoning_gym")
_RESUME = "interrupted: the same command goes on with the episodes that are missing"


@click.command()
@click.argument("env", shell_complete=complete_target)
@click.option("--base-url", help="Address of the environment's server.", show_default="serves ENV for the run")
@click.option("-o", "--output-dir", type=FOLDER, required=True, help="Folder of the episodes.")
@click.option("-n", "--num-episodes", type=COUNT, default=10, show_default=True, help="Number of episodes.")
@click.option("--max-turns", type=COUNT, default=9, show_default=True, help="Most turns of an episode.")
@click.option("--episode-id-prefix", default="ep", show_default=True, help="Beginning of the episodes' ids.")
@click.option("--resume/--no-resume", default=True, show_default=True, help="Whether to keep the episodes there.")
@click.option(
    "--provider",
    type=click.Choice([SCRIPTED, "openai", "responses", "anthropic"]),
    default=SCRIPTED,
    show_default=True,
    help="API of the model; scripted: random tool calls, without a model.",
)
@click.option("--model", help="Name of the model.")
@click.option("--llm-endpoint", metavar="URL", show_default="the provider's own", help="URL of the model's API.")
@click.option("--llm-port", type=click.IntRange(1, 65535), help="Port of the model's API.")
@click.option("--temperature", type=float, default=0.2, show_default=True, help="Temperature of the sampling.")
@click.option("--max-tokens", type=COUNT, default=200, show_default=True, help="Most tokens of a completion.")
@click.option("--keep-losses", is_flag=True, help="Keep episodes with a negative reward, too.")
@click.option("-H", "--push-to-hub", metavar="REPO", help="Upload the episodes as this dataset of the Hub.")
@click.option("--private", is_flag=True, help="Make the dataset private.")
@click.option("--commit-message", help="Message of the upload's commit.")
@click.option("--dataset-config", metavar="JSON", help="Configuration of the dataset of reasoning_gym:DATASET.")
@click.option("--system-prompt", help="System prompt that replaces that of the environment.")
def collect(env: str, base_url: str | None, output_dir: Path, **given: Any) -> None:
    """Records episodes of a model in ENV as `results.jsonl`, one conversation with its reward in each line. ENV is a
    target of `openenv serve`, or any name if --base-url has the address of a server, such as openspiel:GAME and
    reasoning_gym:DATASET.

    An episode that was collected, dropped or failed is not played again by the same command. The folder `rollouts`
    has all that is known of each, for `openenv rollout export` and `openenv episodes view`. Keys come from
    OPENAI_API_KEY, ANTHROPIC_API_KEY or API_KEY.

    Exit code 0: there are episodes; 1: all failed; 130: interrupted.

    \b
    Examples:
      openenv collect echo -o episodes -n 20
      openenv collect my_env -o episodes --provider openai --model qwen \\
        --llm-endpoint http://gpu --llm-port 8000
      openenv collect openspiel:catch --base-url http://127.0.0.1:8000 -o catch
    """

    from ..evals.runner import derived_seeds
    from ..rollouts import collected
    from ..rollouts.journal import read_rollouts
    from ..rollouts.records import RolloutTask

    if base_url is None and env.partition(":")[0] in _ELSEWHERE:
        raise UsageError(
            f"{env} is an environment of another package: serve it, and give its address (--base-url URL), or "
            "collect from a target of `openenv serve`"
        )
    arguments = _reset_arguments(env, given["dataset_config"])
    model = _model(given)
    seeds = derived_seeds(0, given["num_episodes"])
    ids = {seed: f"{given['episode_id_prefix']}-{number:06d}" for number, seed in enumerate(seeds)}
    with ended_in_order(), message_on_interrupt(_RESUME), ExitStack() as stack:
        if not given["resume"]:
            moved = [collected.set_aside(output_dir, name) for name in (collected.RESULTS_FILENAME, RUN_FOLDER)]
            for path in filter(None, moved):
                click.echo(f"kept the earlier episodes as {path}", err=True)
        results = stack.enter_context(collected.ResultsFile(output_dir))
        names = ("provider", "model", "llm_endpoint", "llm_port", "temperature", "keep_losses")
        facts = {"env": env, "env_base_url": base_url, **{name: given[name] for name in names}}
        facts["num_episodes_requested"] = given["num_episodes"]
        if results.ids:
            for name, known in collected.read_metadata(output_dir).items():
                if name in ("env", "provider", "model") and known != facts[name]:
                    raise JournalMismatch(
                        f"{output_dir} has episodes with {name} {known!r}, not {facts[name]!r}: choose another "
                        "folder (-o), or set them aside (--no-resume)"
                    )
        losses = given["keep_losses"]
        collection = collected.Collection(results, ids, lambda each: losses or (each.reward or 0.0) >= 0)
        played = set()
        for finished in read_rollouts(output_dir / RUN_FOLDER):
            played.add(finished.task.seed)
            collection.add(finished)
        tasks = [
            RolloutTask(seed=seed, arguments=arguments)
            for seed, episode_id in ids.items()
            if episode_id not in results.ids and seed not in played
        ]
        collected.write_metadata(output_dir, facts)
        if tasks:
            served, here = evaluated_server(stack, base_url or env, 1, CONCURRENCY, None)
            _play(served, here, model, tasks, output_dir / RUN_FOLDER, collection, given)
        click.echo(_summary(collection, output_dir))
        _publish(output_dir, env, given)
    if not results.ids and collection.counts["failed"]:
        raise click.exceptions.Exit(1)


def _reset_arguments(env: str, dataset_config: str | None) -> dict[str, Any]:
    kind, _, dataset = env.partition(":")
    if kind != "reasoning_gym":
        if dataset_config is not None:
            raise UsageError("--dataset-config is for reasoning_gym:DATASET")
        return {}
    if dataset_config is None:
        return {"dataset_name": dataset}
    try:
        config = json.loads(dataset_config)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidArgument(f"--dataset-config {dataset_config!r:.80} is not a JSON object")
    return {"dataset_name": dataset, "dataset_config": config}


def _model(given: Mapping[str, Any]) -> Model:
    if given["provider"] == SCRIPTED:
        return model_of(RANDOM, (), SCRIPTED)
    if given["model"] is None:
        raise click.UsageError(f"--provider {given['provider']} needs --model NAME")
    url, port = given["llm_endpoint"], given["llm_port"]
    if port is not None:
        parts = urlsplit(url or "")
        if not parts.hostname or parts.port not in (None, port):
            raise UsageError(f"--llm-port {port}: give --llm-endpoint a URL without another port, such as http://gpu")
        url = parts._replace(netloc=f"{parts.hostname}:{port}").geturl()
    return model_of(given["model"], () if url is None else (url,), given["provider"])


def _play(
    served: EvalServer,
    here: Any,
    model: Model,
    tasks: list[RolloutTask],
    folder: Path,
    collection: Collection,
    given: Mapping[str, Any],
) -> None:
    from ..client import GenericEnvClient
    from ..rollouts.chat_view import ChatView
    from ..rollouts.groups import RolloutBudget, RolloutProgress
    from ..rollouts.model import Sampling

    def take(group: RolloutGroup) -> None:
        for rollout in (*group.rollouts, *group.failed):
            collection.add(rollout)

    progress = RolloutProgress()
    note = RateNote(progress, len(tasks))
    options: dict[str, Any] = {
        "budget": RolloutBudget(turns=given["max_turns"]),
        "sampling": Sampling(temperature=given["temperature"], max_tokens=given["max_tokens"]),
        "folder": folder,
        "concurrency": CONCURRENCY,
        "timeout_s": STEP_S,
    }

    async def work() -> None:
        chat = None
        if given["system_prompt"] is not None:
            async with GenericEnvClient(served.url, api_key=served.api_key) as client:
                view = await ChatView.from_server(client)
            chat = view.chat.model_copy(update={"system": given["system_prompt"]})
        await consume(partial(begin_run, served, model, tasks, chat=chat, **options), progress, take)

    with ProgressBar() as bar:
        run_watched(work(), model, here, partial(note.show, bar))


def _summary(collection: Collection, folder: Path) -> str:
    counts, rewards = collection.counts, [reward for reward in collection.rewards if reward is not None]
    said = [f"collected {plural(counts['collected'], 'episode')} in {folder}"]
    said += [f"{counts[name]:,} {name}" for name in ("skipped", "dropped", "failed") if counts[name]]
    if rewards:
        share = sum(reward > 0 for reward in rewards) / len(rewards)
        said += [f"mean reward {fmean(rewards):.4g}, {share:.0%} above 0"]
    return "; ".join(said)


def _publish(folder: Path, env: str, given: Mapping[str, Any]) -> None:
    """Writes the README, and uploads the episodes if the caller asks for it."""
    from ..rollouts import collected

    repo, message = given["push_to_hub"], given["commit_message"] or "openenv collect"
    readme = collected.build_dataset_readme(folder, repo or f"Episodes of {env}")
    (folder / collected.README_FILENAME).write_text(readme, encoding="utf-8")
    if repo is None:
        return
    if not collected.episode_ids(folder):
        raise UsageError(f"{folder} has no episode to upload")
    say = partial(click.echo, err=True)
    page = collected.publish_results(folder, repo, private=given["private"], message=message, say=say)
    click.echo(f"uploaded to {page}")
