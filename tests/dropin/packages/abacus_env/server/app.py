"""The app of the abacus."""

try:
    from openenv.core.env_server.http_server import create_app

    from ..models import CallToolAction, CallToolObservation
    from .abacus_env_environment import AbacusEnvironment
except ImportError:
    from models import CallToolAction, CallToolObservation
    from openenv.core.env_server.http_server import create_app
    from server.abacus_env_environment import AbacusEnvironment

app = create_app(
    AbacusEnvironment,
    CallToolAction,
    CallToolObservation,
    env_name="abacus_env",
    max_concurrent_envs=64,
)


def main(host: str = "0.0.0.0", port: int = 8000):
    """Entry point of `uv run --project . server`."""
    import uvicorn

    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()
