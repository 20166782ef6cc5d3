"""The result format of `openenv collect`: a folder with `results.jsonl`, `metadata.json` and `README.md`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path
from time import gmtime, strftime
from typing import Any, Self, TypeVar

import msgspec

from .._files import lock_file
from ..errors import JournalInUse, UnreadableRecord
from ..project.hub import dataset_card, push_dataset
from ..recording.storage import replace_file
from .records import ChatMessage, Rollout, Turn
from .resource import HarnessRolloutResult, VerifyResult
from .white_box import environment_reward, segment_rows, tool_trace_of

DecodedT = TypeVar("DecodedT")
RESULTS_FILENAME = "results.jsonl"
METADATA_FILENAME = "metadata.json"
README_FILENAME = "README.md"


@dataclass
class EpisodeRecord:
    """One line of `results.jsonl`.

    Attributes:
        episode_id: Id of the episode in this folder.
        messages: The conversation, in the form of OpenAI's chat completions.
        reward: The return; None if the environment gave none.
        done: Whether the environment ended the episode.
        tool_trace: The steps: `tool_name`, `arguments`, and `result` with `data`, `done`, `metadata`, `error`.
        metrics: Counts of the rollout: `turns`, `tool_calls`, `truncated`.
        verify_metrics, artifacts: What a verifier of the episode measured and kept.
        task: What the episode began with.
        extra: Facts of the caller.
    """

    episode_id: str
    messages: list[ChatMessage]
    reward: float | None
    done: bool
    tool_trace: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    verify_metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)
    task: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_rollout(
        cls,
        episode_id: str,
        rollout: HarnessRolloutResult,
        verify: VerifyResult,
        task: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> Self:
        """A rollout that a harness played.

        Args:
            episode_id: Id of the episode in the folder.
            rollout: The rollout. If it has token ids, `extra["segments"]` are its sequences to train on.
            verify: What the session says of it.
            task, extra: As in the record.

        Raises:
            ValueError: It has no reward, or two that differ; see `environment_reward`.
        """
        rows = segment_rows(rollout)
        return cls(
            episode_id=episode_id,
            messages=rollout.messages,
            reward=environment_reward(rollout, verify),
            done=rollout.done or verify.done,
            tool_trace=tool_trace_of(rollout),
            metrics=dict(rollout.metrics),
            verify_metrics=verify.metrics,
            artifacts=verify.artifacts,
            task=task,
            extra={**({"segments": rows} if rows else {}), **(extra or {})},
        )

    def to_dict(self) -> dict[str, Any]:
        """The record in JSON's types; a value of another type is its text."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain


class _EpisodeId(msgspec.Struct):
    episode_id: str


_decode = msgspec.json.Decoder(EpisodeRecord).decode
_decode_id = msgspec.json.Decoder(_EpisodeId).decode


def episode_record(episode_id: str, rollout: Rollout) -> EpisodeRecord:
    """A rollout in the result format. Each tool call of its messages has a reply, also that of the last turn.

    The ids of its tokens are not part of the format: `read_rollouts` has them.
    """
    steps = [step for turn in rollout.turns for step in turn.steps]
    calls = sum(step.tool is not None for step in steps)
    replies = _last_replies(rollout.turns[-1]) if rollout.turns else []
    return EpisodeRecord(
        episode_id=episode_id,
        messages=[*rollout.conversation(), *replies],
        reward=rollout.reward,
        done=any(step.done for step in steps),
        tool_trace=[
            {
                "tool_name": step.tool,
                "arguments": step.action,
                "result": {
                    "data": step.observation,
                    "done": step.done,
                    "metadata": {"reward": step.reward},
                    "error": step.error,
                },
            }
            for step in steps
        ],
        metrics={
            "turns": len(rollout.turns),
            "tool_calls": calls,
            "truncated": rollout.outcome != "terminated",
            "outcome": str(rollout.outcome),
        },
        verify_metrics=dict(rollout.rubric),
        task=msgspec.to_builtins(rollout.task),
        extra={"rollout_id": rollout.rollout_id, "usage": msgspec.to_builtins(rollout.usage)},
    )


def _last_replies(turn: Turn) -> list[ChatMessage]:
    """The replies to the tool calls of a turn after which there is no prompt."""
    replies: dict[str | None, str] = {}
    for step in turn.steps:
        seen = step.error or step.observation
        text = "" if seen is None else json.dumps(seen, sort_keys=True)
        replies[step.call_id] = seen if isinstance(seen, str) else text
    return [
        {
            "role": "tool",
            "tool_call_id": call.get("id"),
            "name": call.get("function", {}).get("name"),
            "content": replies.get(call.get("id"), "not called: the episode had ended"),
        }
        for call in turn.completion.get("tool_calls") or ()
    ]


class ResultsFile:
    """The `results.jsonl` of a folder, open to append episodes. One process may have it open at a time.

    An incomplete last line, which a killed process left, is removed.

    Args:
        folder: The folder; it is created.

    Raises:
        JournalInUse: Another process has it open.
        UnreadableRecord: A line is no episode.
        OSError: The file cannot be opened.

    Attributes:
        path: The file.
        ids: The ids of its episodes.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / RESULTS_FILENAME
        self.ids: set[str] = set()
        self._file = self.path.open("ab", buffering=0)
        try:
            if not lock_file(self._file.fileno()):
                raise JournalInUse(
                    f"{self.path} is being written by another process: wait for it, or name another -o"
                )
            end, ended = 0, True
            for line, episode in _lines(self.path, _decode_id):
                if episode is None:
                    os.ftruncate(self._file.fileno(), end)
                else:
                    self.ids.add(episode.episode_id)
                    end, ended = end + len(line), line.endswith(b"\n")
            if not ended:
                self._file.write(b"\n")
        except BaseException:
            self._file.close()
            raise

    def append(self, record: EpisodeRecord) -> None:
        """Appends an episode. After it returns, the episode is on disk.

        Raises:
            OSError: It cannot be written; no part of it is left.
        """
        end = os.fstat(self._file.fileno()).st_size
        rest = memoryview(msgspec.json.encode(record, enc_hook=str) + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise
        self.ids.add(record.episode_id)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_results(folder: Path) -> Iterator[EpisodeRecord]:
    """The episodes of a folder, without an incomplete last line.

    Raises:
        UnreadableRecord: A line is no episode; the message names it.
    """
    path = folder / RESULTS_FILENAME
    if path.exists():
        yield from (record for _, record in _lines(path, _decode) if record is not None)


def episode_ids(folder: Path) -> set[str]:
    """The ids of the episodes of a folder, without that of an incomplete last line.

    Raises:
        UnreadableRecord: A line is no episode; the message names it.
    """
    path = folder / RESULTS_FILENAME
    return {each.episode_id for _, each in _lines(path, _decode_id) if each is not None} if path.exists() else set()


def _lines(path: Path, decode: Callable[[bytes], DecodedT]) -> Iterator[tuple[bytes, DecodedT | None]]:
    """The lines of a file, decoded, without empty ones; None for an incomplete last line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield line, decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if line.endswith(b"\n"):
                    raise UnreadableRecord(
                        f"{path}:{number} is no episode ({error}): correct or remove the line"
                    ) from None
                yield line, None


def write_metadata(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes `metadata.json`. The old file stays until the new one is complete.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / METADATA_FILENAME) as part:
        part.write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")


def read_metadata(folder: Path) -> dict[str, Any]:
    """The facts of `metadata.json`; empty if there is none.

    Raises:
        UnreadableRecord: It is not a JSON object.
    """
    path = folder / METADATA_FILENAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise UnreadableRecord(f"{path} is not a JSON object: {error}") from None


# Facts of a run that may name machines of its owner.
_PRIVATE = frozenset({"env_base_url", "llm_endpoint", "llm_port", "base_url"})


def set_aside(folder: Path, name: str) -> Path | None:
    """Renames a file or folder of an earlier collection: `results.jsonl` to `results.<UTC stamp>.bak.jsonl`.

    Returns:
        The new path; None if there was nothing.
    """
    path = folder / name
    if not path.exists():
        return None
    stamp = strftime("%Y%m%dT%H%M%SZ", gmtime())
    for number in count():
        again = f".{number}" if number else ""
        target = path.with_name(f"{path.stem}.{stamp}{again}.bak{path.suffix}")
        if not target.exists():
            break
    path.rename(target)
    return target


def public_metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of `metadata.json` that may be published: without addresses."""
    return {
        name: value
        for name, value in facts.items()
        if name not in _PRIVATE and not (isinstance(value, str) and "://" in value)
    }


def build_dataset_readme(output_dir: str | Path, title: str | None = None) -> str:
    """The README of a folder's episodes as a dataset: what it has, its columns, and how to load it. No addresses.

    Args:
        output_dir: The folder.
        title: Heading; by default the environment of the metadata.

    Raises:
        UnreadableRecord: The results or the metadata cannot be read.
    """
    folder = Path(output_dir)
    facts = public_metadata(read_metadata(folder))
    columns = ", ".join(f"`{each.name}`" for each in fields(EpisodeRecord))
    text = [
        f"{len(episode_ids(folder)):,} episodes, one in each line, with the conversation and its reward.",
        *("", "| | |", "|---|---|"),
        *(f"| {name} | {value} |" for name, value in facts.items() if value is not None),
        *("", f"Columns: {columns}. `messages` are those of OpenAI's chat completions."),
        *(
            "",
            "```python",
            "from datasets import load_dataset",
            "",
            'load_dataset("OWNER/NAME", split="train")',
            "```",
        ),
    ]
    name = title or f"Episodes of {facts.get('env', 'an environment')}"
    return dataset_card(name, RESULTS_FILENAME, "\n".join(text)).decode()


def publish_results(output_dir: str | Path, repo_id: str, **options: Any) -> str:
    """Writes the README and uploads the episodes as a dataset: no backups, no run, no addresses.

    Args:
        output_dir: The folder.
        repo_id: Name of the dataset, with or without its owner.
        options: Of `push_dataset`: `private`, `message`, `token`, `say`.

    Returns:
        The address of its page.

    Raises:
        FileNotFoundError: There are no results.
        OpenEnvError: The upload failed.
    """
    folder = Path(output_dir)
    results = folder / RESULTS_FILENAME
    if not results.exists():
        raise FileNotFoundError(f"{results} does not exist: collect episodes first")
    readme = build_dataset_readme(folder, repo_id).encode()
    (folder / README_FILENAME).write_bytes(readme)
    facts = json.dumps(public_metadata(read_metadata(folder)), indent=2).encode()
    files: dict[str, Path | bytes] = {
        RESULTS_FILENAME: results,
        METADATA_FILENAME: facts,
        README_FILENAME: readme,
    }
    return push_dataset(repo_id, files, **options)


class Collection:
    """Takes the rollouts of a run as episodes of a folder.

    Args:
        results: The file of the episodes.
        ids: The episode id of each seed.
        keep: Whether a rollout with a return becomes an episode.

    Attributes:
        rewards: The rewards of the episodes that were added.
        counts: Number of rollouts that were `collected`, `skipped` (they were there), `dropped` or `failed`.
    """

    def __init__(self, results: ResultsFile, ids: Mapping[int, str], keep: Callable[[Rollout], bool]):
        self.rewards: list[float | None] = []
        self.counts: Counter[str] = Counter(skipped=sum(episode_id in results.ids for episode_id in ids.values()))
        self._results = results
        self._ids = ids
        self._keep = keep

    def add(self, rollout: Rollout) -> None:
        """Takes a rollout; one of an episode that is there changes nothing."""
        episode_id = self._ids.get(rollout.task.seed if rollout.task.seed is not None else -1)
        if episode_id is None or episode_id in self._results.ids:
            return
        if not rollout.outcome.has_return:
            self.counts["failed"] += 1
        elif not self._keep(rollout):
            self.counts["dropped"] += 1
        else:
            self._results.append(episode_record(episode_id, rollout))
            self.counts["collected"] += 1
            self.rewards.append(rollout.reward)
