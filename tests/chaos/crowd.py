"""A crowd of clients in a process of its own, through the client of whatever package is called `openenv`.

    python crowd.py URL '{"sessions": 200, ...}'

The options are the fields of `Plan`. It says `{"ready": n}` when all sessions have their first episode, reads
commands from standard input, a line each, and prints a report as JSON when it is told to end:

- `phase NAME`: what is measured from here on is booked under that name.
- `dare K WHAT SECONDS`: in their next step, K sessions dare the environment to do that. What ends in an error
  is told at once: `{"dared": session, "error": name}`.
- `pause`, `resume`: no session begins a call, and does again.
- `finish`: every session plays its episode to the end, and no other.
- `stop`: every session ends after its call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from openenv import GenericEnvClient

try:
    from openenv.errors import OpenEnvError
except ImportError:  # the other package has no such class

    class OpenEnvError(Exception):
        """Nothing is one."""


# Errors of one session after which it is given up, and the pause after each.
MOST_ERRORS = 40
ERROR_PAUSE_S = 0.1
DARE_PAUSE_S = 0.01


@dataclass
class Plan:
    """What the crowd does.

    Attributes:
        sessions: How many.
        vector: Of these, how many through one vector client; the others have a client each.
        connections: Of the vector client.
        steps: Of an episode.
        episodes: After which a session ends; 0: when it is told to.
        pace_s: From the beginning of one step to the next.
        timeout_s: For each call.
        first: Number of the first session; no two crowds of a trial share numbers.
        churn: The share of episodes after which a client closes and begins anew.
        retry: Whether a session that was lost goes on with a reset.
        insist: Whether a session that is refused at first asks again until it is not.
        connecting: How many sessions begin at one time.
        options: Further arguments of the clients.
    """

    sessions: int = 200
    vector: int = 0
    connections: int = 4
    steps: int = 10
    episodes: int = 0
    pace_s: float = 0.2
    timeout_s: float = 10.0
    first: int = 0
    churn: float = 0.0
    retry: bool = True
    insist: bool = False
    connecting: int = 32
    options: dict[str, Any] = field(default_factory=dict)


class Book:
    """What is measured, by phase."""

    def __init__(self) -> None:
        self.phase = "start"
        self.latencies: dict[str, list[float]] = {}
        self.errors: list[dict[str, Any]] = []
        # By episode: steps that were answered, steps that were not, and how it ended.
        self.answered: Counter[int] = Counter()
        self.unanswered: dict[int, list[int]] = {}
        self.completed: list[int] = []
        self.mixed: list[str] = []
        self.pids: dict[int, int] = {}
        self.gaps: dict[int, float] = {}

    def step(self, player: Player, began: float, seen: Any) -> None:
        self.latencies.setdefault(self.phase, []).append(time.monotonic() - began)
        self.answered[player.episode] += 1
        self.pids[player.number] = seen.get("pid", 0)
        told = (seen.get("request"), seen.get("episode"), seen.get("steps"))
        if told[:2] != (player.request, player.episode):
            self.mixed.append(f"episode {player.episode}, request {player.request}: the reply says {told}")

    def error(self, player: Player, what: str, began: float, error: BaseException) -> None:
        now = time.monotonic()
        if player.dared:
            player.dared = False
            _say({"dared": player.number, "error": type(error).__name__})
        if what != "reset":
            self.unanswered.setdefault(player.episode, []).append(player.request)
        self.errors.append(
            {
                "session": player.number,
                "what": what,
                "error": type(error).__name__,
                "blame": str(error.blame) if isinstance(error, OpenEnvError) else None,
                "message": str(error)[:300],
                "at": now,
                "after_s": now - began,
                "phase": self.phase,
                "retry_after_s": getattr(error, "retry_after_s", None),
            }
        )

    def report(self) -> dict[str, Any]:
        return {
            "latencies": {
                phase: {
                    "count": len(found),
                    "p50": _quantile(found, 0.5),
                    "p99": _quantile(found, 0.99),
                    "max": max(found),
                }
                for phase, found in self.latencies.items()
            },
            "errors": self.errors,
            "answered": self.answered,
            "unanswered": self.unanswered,
            "completed": self.completed,
            "mixed": self.mixed,
            "pids": self.pids,
        }


def _quantile(found: list[float], share: float) -> float:
    return sorted(found)[min(len(found) - 1, int(share * len(found)))]


class Player:
    """One session: which episode it is in, and which request is on its way."""

    def __init__(self, number: int, plan: Plan):
        self.number = number
        self.plan = plan
        self.played = 0
        self.request = 0
        self.taken = 0
        self.dare = ("step", 0.0)
        self.dared = False
        self.errors = 0

    @property
    def episode(self) -> int:
        return self.number * 100_000 + self.played

    def action(self) -> dict[str, Any]:
        self.request += 1
        what, seconds = self.dare
        self.dared = what != "step"
        self.dare = ("step", 0.0)
        return {"request": self.request, "what": what, "seconds": seconds}


class Crowd:
    """All sessions, and what they were told."""

    def __init__(self, url: str, plan: Plan):
        self.url = url
        self.plan = plan
        self.book = Book()
        self.going = asyncio.Event()
        self.going.set()
        self.finishing = self.stopping = False
        self.ready = 0
        self.places = asyncio.Semaphore(plan.connecting)
        numbers = range(plan.first, plan.first + plan.sessions)
        self.players = [Player(number, plan) for number in numbers]
        self.origin = time.monotonic()

    async def run(self) -> None:
        split = self.plan.vector
        loops = [self._play(player) for player in self.players[split:]]
        if split:
            loops.append(self._play_together(self.players[:split]))
        await asyncio.gather(*loops)

    def command(self, line: str) -> None:
        words = line.split()
        if not words:
            return
        if words[0] == "phase":
            self.book.phase = words[1]
        elif words[0] == "dare":
            for player in self.players[-int(words[1]) :]:
                player.dare = (words[2], float(words[3]))
        elif words[0] == "pause":
            self.going.clear()
        elif words[0] == "resume":
            self.going.set()
        elif words[0] == "finish":
            self.finishing = True
            self.going.set()
        elif words[0] == "stop":
            self.stopping = True
            self.going.set()

    def _client(self) -> Any:
        return GenericEnvClient(
            base_url=self.url, message_timeout_s=self.plan.timeout_s, connect_timeout_s=30.0, **self.plan.options
        )

    def _is_ready(self, count: int = 1) -> None:
        before, self.ready = self.ready, self.ready + count
        if before < len(self.players) <= self.ready:
            _say({"ready": self.ready})

    # One client a session.

    async def _play(self, player: Player) -> None:
        client = self._client()
        first = True
        try:
            while self._another(player):
                began = time.monotonic()
                try:
                    if first:
                        async with self.places:
                            client = await self._begin(player, client)
                    else:
                        await client.reset(seed=player.episode)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is booked
                    if first:
                        self._is_ready()
                        first = False
                    client = await self._failed(player, "reset", began, error, client)
                    continue
                if first:
                    self._is_ready()
                    first = False
                client = await self._episode(player, client)
                if self.plan.churn and player.played % max(1, round(1 / self.plan.churn)) == 0:
                    await _close(client)
                    client = self._client()
        finally:
            await _close(client)

    async def _begin(self, player: Player, client: Any) -> Any:
        """The first reset; returns the client that made it."""
        while True:
            try:
                await client.reset(seed=player.episode)
            except Exception:
                if not self.plan.insist:
                    raise
                await _close(client)
                client = self._client()
                player.played += 1
                await asyncio.sleep(ERROR_PAUSE_S)
            else:
                return client

    def _another(self, player: Player) -> bool:
        if self.stopping or (self.finishing and player.played) or player.errors >= MOST_ERRORS:
            return False
        return not self.plan.episodes or player.played < self.plan.episodes

    async def _episode(self, player: Player, client: Any) -> Any:
        """Plays an episode; returns the client to go on with."""
        taken, due = 0, self._first_due(player)
        while taken < self.plan.steps and not self.stopping:
            due = await self._paced(due)
            if self.stopping:
                break
            began = time.monotonic()
            try:
                result = await client.step(player.action())
            except Exception as error:  # noqa: BLE001 - as above
                client = await self._failed(player, "step", began, error, client)
                if _is_over(error):
                    player.played += 1
                    return client
            else:
                self.book.step(player, began, result.observation)
            taken += 1
        if taken >= self.plan.steps:
            self.book.completed.append(player.episode)
        player.played += 1
        return client

    def _first_due(self, player: Player) -> float:
        # Spread over the pace: a crowd that moves in step would measure its own queue.
        return time.monotonic() + self.plan.pace_s * ((player.number * 0.618) % 1.0)

    async def _paced(self, due: float) -> float:
        await self.going.wait()
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
            await self.going.wait()
        return max(due, time.monotonic() - self.plan.pace_s) + self.plan.pace_s

    async def _failed(self, player: Player, what: str, began: float, error: BaseException, client: Any) -> Any:
        self.book.error(player, what, began, error)
        player.errors += 1
        if not self.plan.retry and _is_over(error):
            player.errors = MOST_ERRORS
        if what == "reset":
            # A client of the other package may need another one to begin anew.
            player.played += 1
            await asyncio.sleep(getattr(error, "retry_after_s", None) or ERROR_PAUSE_S)
            await _close(client)
            return self._client()
        return client

    # One client for many sessions.

    async def _play_together(self, players: list[Player]) -> None:
        from openenv import VectorEnvClient

        plan = self.plan
        async with VectorEnvClient(
            GenericEnvClient,
            self.url,
            num_envs=len(players),
            connections=plan.connections,
            message_timeout_s=plan.timeout_s,
            connect_timeout_s=30.0,
            **plan.options,
        ) as envs:
            await self._reset_some(envs, players, range(len(players)))
            self._is_ready(len(players))
            due = time.monotonic()
            while True:
                due = await self._paced(due)
                if self.stopping:
                    return
                await self._step_all(envs, players)
                if not plan.retry and all(player.errors for player in players):
                    return
                over = [index for index, player in enumerate(players) if player.taken >= plan.steps]
                if not plan.retry:
                    over = [index for index in over if not players[index].errors]
                if over and not self._another(players[0]):
                    return
                if over:
                    await self._reset_some(envs, players, over)

    async def _reset_some(self, envs: Any, players: list[Player], indices: Any) -> None:
        began = time.monotonic()
        indices = list(indices)
        results = await envs.reset(seeds=[players[index].episode for index in indices], env_ids=indices)
        for index, result in zip(indices, results, strict=True):
            players[index].taken = 0
            if result.error is not None:
                self.book.error(players[index], "reset", began, result.error)
                players[index].played += 1
                players[index].taken = self.plan.steps

    async def _step_all(self, envs: Any, players: list[Player]) -> None:
        began = time.monotonic()
        results = await envs.step([player.action() for player in players])
        for player, result in zip(players, results, strict=True):
            if player.errors and not self.plan.retry:
                continue  # it has left; the vector steps all of its environments
            player.taken += 1
            if result.error is None:
                self.book.step(player, began, result.observation)
            else:
                self.book.error(player, "step", began, result.error)
                player.errors += 1
                if _is_over(result.error):
                    player.taken, player.played = self.plan.steps, player.played + 1
                    continue
            if player.taken >= self.plan.steps:
                self.book.completed.append(player.episode)
                player.played += 1


def _is_over(error: BaseException) -> bool:
    """Whether an error ends the episode: all but those of a single call."""
    return type(error).__name__ not in {"StepTimeout", "TimeoutError", "StepFailed", "InvalidAction", "TooManyCalls"}


async def _close(client: Any) -> None:
    try:
        async with asyncio.timeout(5):
            await client.close()
    except Exception:  # noqa: BLE001 - it is of no use any more
        pass


def _say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def main(url: str, plan: Plan) -> None:
    """Plays until it is told to end, and prints its report."""
    warnings.simplefilter("ignore")
    crowd = Crowd(url, plan)
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(crowd.command, line)
        loop.call_soon_threadsafe(crowd.command, "stop")

    threading.Thread(target=listen, daemon=True).start()
    await crowd.run()
    _say({"report": crowd.book.report()})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Plan(**json.loads(sys.argv[2]))))
