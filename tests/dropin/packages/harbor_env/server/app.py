"""The app of the harbor, with the server class itself, as older projects have it."""

import os

from openenv.core.env_server.http_server import create_app

try:
    from harbor_env.models import HarborAction, HarborObservation, HarborState
    from harbor_env.server.harbor_env_environment import HarborEnvironment
except ImportError:
    from models import HarborAction, HarborObservation, HarborState
    from server.harbor_env_environment import HarborEnvironment


def create_harbor_environment() -> HarborEnvironment:
    """Factory: what each session gets."""
    return HarborEnvironment(ships=int(os.environ.get("HARBOR_SHIPS", "3")))


app = create_app(
    create_harbor_environment,
    HarborAction,
    HarborObservation,
    "harbor_env",
    128,
    state_cls=HarborState,
)


def main():
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
