"""The base class of environments that play many episodes in one instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, get_args

from .environment import Environment
from .types import ActT, EnvironmentMetadata, ObsT, StateT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Autoreset", "BatchedEnvironment"]

Autoreset = Literal["disabled", "next_step", "same_step"]
"""When a finished episode is followed by the next one: never by itself, in place of its next step, or at once."""
AUTORESETS: tuple[Autoreset, ...] = get_args(Autoreset)

Columns = Mapping[str, Any]
"""A value of each episode by field: an array of shape (num_envs, ...), or a list of `num_envs` values."""

if TYPE_CHECKING:
    # Not an `Environment` for type checkers: `reset` and `step` of a batch return columns and no observation.
    class _Environment(ABC, Generic[ActT, ObsT, StateT]):
        execution: ClassVar[str | None]
        rng: Random

        def close(self) -> None: ...
        def save_state(self) -> Any: ...
        def load_state(self, state: Any) -> None: ...
        def get_metadata(self) -> EnvironmentMetadata: ...

else:
    _Environment = Environment


class BatchedEnvironment(_Environment[ActT, ObsT, StateT]):
    """One instance plays `num_envs` episodes, all of them in one call.

    Action, observation and state are those of one episode. In the methods, their fields are columns: a field of type
    `int`, `float` or `bool`, or with an `Array`, is an array of shape (num_envs, ...) of int64, float64, bool or the
    declared type; any other field is a list of num_envs values.

    One client may own the whole batch (`BatchedEnvClient`): one call and one frame are a step of all episodes. Any
    other session is one episode of an instance that sessions share (docs/how-to/batched.md).

    Attributes:
        num_envs: The number of episodes of an instance.
        autoreset: What `step` does with an episode that has ended. `"disabled"`: nothing, `reset` starts the next
            one; then a client chooses between all modes, and single sessions can share an instance. `"next_step"` and
            `"same_step"`, as in Gymnasium: the class starts the next one itself.
        owned_only: Whether no episode can step without the others, so that only a client that owns the batch can
            play. Then the column of a field of type `TypedDict` or `tuple` is not a list, but a dict with the columns
            of its parts: of a tuple, under their numbers.
        execution: `"inline"` runs the methods on the server's event loop: for steps of microseconds. `None` takes a
            thread for each instance.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True
    num_envs: ClassVar[int]
    autoreset: ClassVar[Autoreset] = "disabled"
    owned_only: ClassVar[bool] = False

    if TYPE_CHECKING:
        # As in `Environment`: a subclass declares the arguments that it takes.
        @abstractmethod
        def reset(self, *args: Any, **kwargs: Any) -> tuple[Columns, Columns]: ...
        @abstractmethod
        def step(self, *args: Any, **kwargs: Any) -> tuple[Columns, Any, Any, Any, Columns]: ...

    else:

        @abstractmethod
        def reset(
            self, seeds: Sequence[int | None], mask: NDArray[np.bool_], **kwargs: Any
        ) -> tuple[Columns, Columns]:
            """Starts episodes.

            Args:
                seeds: The seed of each episode, for repeatable ones; None for those that get any.
                mask: Which episodes start, of shape (num_envs,). All others must not change.
                kwargs: Further arguments of the client that owns the batch. A `reset` that declares none gets none.

            Returns:
                Observations and infos of all episodes. The rows of those that did not start are their present
                observations, if a client may ask for single resets (`autoreset = "disabled"`).
            """

        @abstractmethod
        def step(self, actions: Columns, mask: NDArray[np.bool_]) -> tuple[Columns, Any, Any, Any, Columns]:
            """Executes one action of each episode.

            Args:
                actions: The fields of the actions.
                mask: Which episodes step, of shape (num_envs,). All others must not change. Their actions are 0 or
                    None, and their rows in the result are ignored.

            Returns:
                Observations, rewards, terminated, truncated, infos; those in the middle are arrays of shape
                (num_envs,). The next call may change the arrays.
            """

    @property
    def state(self) -> StateT:
        """Not used: `state_of` is the state of an episode."""
        raise NotImplementedError

    def state_of(self, index: int) -> StateT | None:
        """The state of one episode; None for a `State` with its id and its number of steps.

        Args:
            index: The episode, from 0.
        """
        return None
