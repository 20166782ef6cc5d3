"""The app of the duel."""

import uvicorn
from openenv.core.env_server.http_server import create_app

from ..models import DuelAction, DuelObservation
from .duel_env_environment import DuelEnvironment

app = create_app(DuelEnvironment, DuelAction, DuelObservation, env_name="duel_env", max_concurrent_envs=16)


def main():
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
