"""The app of the snippets."""

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.types import Observation

from ..models import SnippetAction
from .snippet_env_environment import SnippetEnvironment

app = create_app(SnippetEnvironment, SnippetAction, Observation, env_name="snippet_env", max_concurrent_envs=16)


def main():
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
