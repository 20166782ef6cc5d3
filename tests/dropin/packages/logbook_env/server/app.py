"""The app of the logbook."""

import uvicorn
from openenv.core.env_server.http_server import create_app

from ..models import CallToolAction, CallToolObservation
from .logbook_env_environment import LogbookEnvironment

app = create_app(
    LogbookEnvironment, CallToolAction, CallToolObservation, env_name="logbook_env", max_concurrent_envs=16
)


def main():
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
