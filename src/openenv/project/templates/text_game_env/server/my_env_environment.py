"""The environment: replace this class with your own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any
from uuid import uuid4

from openenv.chat import Chat, TagAnswer
from openenv.environment import Environment
from openenv.errors import ResetRequired

from ..models import MyAction, MyObservation, MyState
from .house import DOORS, FURTHER, START, next_room

__all__ = ["MyEnvironment"]

MOST_TURNS = 20
FOR_THE_KEY = 0.25
FOR_THE_CHEST = 1.0


class MyEnvironment(Environment[MyAction, MyObservation, MyState]):
    """A text adventure in a house of six rooms. The key is worth 0.25, the chest 1; the story ends after 20 turns."""

    # A server may run many instances, since they share no data. Keep all data in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state has the places of key and chest
    # How a language model plays it: what it reads, and how its answer becomes an action.
    chat = Chat(
        system="Find the key, and open the chest. End each answer with one command: <command>look</command>",
        observation="{text}\nYou can:\n{commands}",
        answer=TagAnswer(tag="command"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._state = MyState()
        self._playing = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyObservation:
        """Puts the key into one room and the chest into another.

        Args:
            seed: The same seed makes the same house. `self.rng` is already seeded with it: take all random numbers
                from there.
            episode_id: Id of the episode.
        """
        key_room, chest_room = self.rng.sample(FURTHER, 2)
        self._state = MyState(
            episode_id=episode_id or uuid4().hex, room=START, key_room=key_room, chest_room=chest_room
        )
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return MyObservation(text=f"Somewhere in this house is a chest. {self._look()}", commands=self._commands())

    def step(self, action: MyAction, timeout_s: float | None = None, **kwargs: Any) -> MyObservation:
        """Executes a command. The observation explains an impossible one, so that the player can try another."""
        if not self._playing:
            raise ResetRequired("no story is running: call reset() to begin one")
        self._state.step_count += 1
        command = " ".join(action.command.lower().split())
        text, reward = self._do(command)
        opened = reward == FOR_THE_CHEST
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = self._state.step_count >= MOST_TURNS and not opened
        self._playing = not (opened or truncated)
        return MyObservation(
            text=text,
            commands=self._commands(),
            reward=reward,
            done=opened or truncated,
            terminated=opened,
            truncated=truncated,
        )

    @property
    def state(self) -> MyState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> MyAction:
        """The next action of a solution: the way to the key, and then to the chest."""
        state = self._state
        wanted = state.chest_room if state.has_key else state.key_room
        if state.room != wanted:
            return MyAction(command=f"go {next_room(state.room, wanted)}")
        return MyAction(command="open chest" if state.has_key else "take key")

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that tries the same commands in each house, and that of a solution."""
        return 0.5, FOR_THE_KEY + FOR_THE_CHEST

    def render_web(self, observation: Any) -> str:
        """HTML for the web page. `observation` is a dict of its fields. Escape texts that are not HTML."""
        rooms = "".join(
            f"<li>{'<b>you are here: </b>' if room == self._state.room else ''}{escape(room)}</li>" for room in DOORS
        )
        bag = "the key" if self._state.has_key else "nothing"
        turn = f"Turn {self._state.step_count} of {MOST_TURNS}. You carry {bag}."
        return f"<p>{escape(observation.text)}</p><ul>{rooms}</ul><p>{turn}</p>"

    def web_actions(self, observation: Any) -> Sequence[tuple[str, dict[str, Any]]]:
        """The buttons of the web page: pairs of a label and an action."""
        return [(command, {"command": command}) for command in observation.commands]

    def _do(self, command: str) -> tuple[str, float]:
        """Executes a command. Returns a text and the reward."""
        if command not in self._commands():
            return f"You cannot do that here. You can: {', '.join(self._commands())}.", 0.0
        if command == "take key":
            self._state.has_key = True
            return "You take the key.", FOR_THE_KEY
        if command == "open chest":
            if not self._state.has_key:
                return "The chest is locked. There must be a key.", 0.0
            return "The chest opens. You have won.", FOR_THE_CHEST
        if command.startswith("go "):
            self._state.room = command.removeprefix("go ")
        return self._look(), 0.0

    def _look(self) -> str:
        seen = [f"You are in the {self._state.room}."]
        if self._key_is_here():
            seen.append("A key lies on the floor.")
        if self._state.room == self._state.chest_room:
            seen.append("A chest stands in the corner.")
        return " ".join([*seen, f"Doors lead to the {' and the '.join(DOORS[self._state.room])}."])

    def _commands(self) -> list[str]:
        """The commands that are possible now."""
        if not self._playing:
            return []
        things = ["take key"] if self._key_is_here() else []
        if self._state.room == self._state.chest_room:
            things.append("open chest")
        return [*things, *(f"go {room}" for room in DOORS[self._state.room]), "look"]

    def _key_is_here(self) -> bool:
        return self._state.room == self._state.key_room and not self._state.has_key
