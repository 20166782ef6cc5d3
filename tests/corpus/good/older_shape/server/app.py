"""The app, with the imports that the older template has."""

from openenv.core.env_server.http_server import create_app

try:
    from ..models import MazeAction, MazeObservation
    from .maze_environment import MazeEnvironment
except ImportError:
    from models import MazeAction, MazeObservation
    from server.maze_environment import MazeEnvironment

app = create_app(MazeEnvironment, MazeAction, MazeObservation, env_name="maze", max_concurrent_envs=1)


def main(host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serves it."""
    import uvicorn

    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()
