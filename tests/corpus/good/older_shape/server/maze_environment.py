"""The environment."""

from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

try:
    from ..models import MazeAction, MazeObservation
except ImportError:
    from models import MazeAction, MazeObservation


class MazeEnvironment(Environment):
    """Repeats where one goes."""

    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self):
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs) -> MazeObservation:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return MazeObservation(echoed_message="Maze environment ready!", message_length=0, done=False, reward=0.0)

    def step(self, action: MazeAction) -> MazeObservation:
        self._state.step_count += 1
        return MazeObservation(
            echoed_message=action.message,
            message_length=len(action.message),
            done=False,
            reward=len(action.message) * 0.1,
            metadata={"original_message": action.message, "step": self._state.step_count},
        )

    @property
    def state(self) -> State:
        return self._state
