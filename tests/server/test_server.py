from __future__ import annotations

import time
from functools import partial

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.errors import ConcurrencyConfigurationError, UsageError
from openenv.server import HTTPEnvServer, create_app, create_fastapi_app
from openenv.server.auth import ANONYMOUS
from openenv.server.server import DEFAULT_MAX_SESSIONS
from openenv.settings import ServerSettings
from openenv.types import ConcurrencyConfig, ServerMode

from .probe import ProbeAction, ProbeEnvironment, ProbeObservation


class Alone(ProbeEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = False


def server_of(environment=ProbeEnvironment, *, environ=None, **options):
    settings = ServerSettings.read(environ or {})
    return HTTPEnvServer(environment, ProbeAction, ProbeObservation, settings=settings, **options)


def test_an_instance_is_refused_and_told_so():
    with pytest.raises(TypeError, match="instance of ProbeEnvironment"):
        server_of(ProbeEnvironment())


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError):
        server_of("ProbeEnvironment")


def test_both_ways_to_say_a_limit_are_one_too_many():
    with pytest.raises(ValueError, match="not both"):
        server_of(max_concurrent_envs=2, concurrency_config=ConcurrencyConfig(max_concurrent_envs=2))


def test_default_limits():
    assert server_of().max_concurrent_envs == DEFAULT_MAX_SESSIONS
    assert server_of(Alone).max_concurrent_envs == 1
    assert server_of(lambda: ProbeEnvironment()).max_concurrent_envs == 1


def test_more_than_one_session_needs_an_environment_that_allows_it():
    with pytest.raises(ConcurrencyConfigurationError) as refused:
        server_of(Alone, max_concurrent_envs=2)
    assert (refused.value.environment_name, refused.value.max_concurrent_envs) == ("Alone", 2)
    with pytest.raises(ConcurrencyConfigurationError):
        server_of(partial(Alone), environ={"MAX_CONCURRENT_ENVS": "8"})
    assert server_of(Alone, max_concurrent_envs=1).max_concurrent_envs == 1


def test_who_decides_about_the_limit():
    environ = {"MAX_CONCURRENT_ENVS": "7"}
    assert server_of(environ=environ).max_concurrent_envs == 7
    assert server_of(environ=environ, max_concurrent_envs=3).max_concurrent_envs == 3
    environ["OPENENV_MAX_SESSIONS"] = "9"
    assert server_of(environ=environ, max_concurrent_envs=3).max_concurrent_envs == 9


def test_a_concurrency_config_sets_both_limits():
    server = server_of(concurrency_config=ConcurrencyConfig(max_concurrent_envs=5, session_timeout=30))
    assert server.concurrency_config == ConcurrencyConfig(max_concurrent_envs=5, session_timeout=30)
    assert server.manager.limits.idle_timeout_s == 30


def test_capacity_status():
    status = server_of(max_concurrent_envs=5).get_capacity_status()
    assert (status.active_sessions, status.max_sessions, status.available_slots) == (0, 5, 5)
    assert not status.is_at_capacity


def test_concurrency_safety_is_read_from_the_class():
    assert server_of().is_concurrency_safe
    assert not server_of(Alone).is_concurrency_safe
    assert not server_of(lambda: ProbeEnvironment()).is_concurrency_safe


def test_an_unknown_execution_is_refused_when_the_app_is_made():
    class Strange(ProbeEnvironment):
        execution = "magic"

    with pytest.raises(UsageError, match="magic"):
        server_of(Strange)


def test_the_positional_orders_of_existing_code():
    app = create_app(ProbeEnvironment, ProbeAction, ProbeObservation, "named", 3)
    assert (app.state.openenv.env_name, app.state.openenv.max_concurrent_envs) == ("named", 3)
    app = create_fastapi_app(ProbeEnvironment, ProbeAction, ProbeObservation, 3, None, "named")
    assert (app.state.openenv.env_name, app.state.openenv.max_concurrent_envs) == ("named", 3)
    assert create_app(ProbeEnvironment, ProbeAction, ProbeObservation).state.openenv.env_name == "ProbeEnvironment"


async def test_what_programs_read_of_a_server():
    server = server_of(max_concurrent_envs=3)
    assert (server.active_sessions, server.max_concurrent_envs, server.is_concurrency_safe) == (0, 3, True)
    assert server.concurrency_config == ConcurrencyConfig(max_concurrent_envs=3, session_timeout=3600.0)
    assert server.get_capacity_status().model_dump() == {"active_sessions": 0, "max_sessions": 3}
    began = time.time()
    shared = await server.shared_sessions.open(ANONYMOUS)
    await shared.call(lambda session, done: session.step(ProbeAction(), done))
    assert server.get_capacity_status().available_slots == 2
    info = server.get_session_info(shared.id)
    assert (info.session_id, info.step_count, info.environment_type) == (shared.id, 1, "ProbeEnvironment")
    assert began - 1 < info.created_at <= info.last_activity_at < time.time() + 1
    await shared.close()
    assert server.get_session_info(shared.id) is None
    assert server.active_sessions == 0
    await server.aclose()


def test_an_environment_that_is_not_safe_says_so():
    assert not server_of(Alone).is_concurrency_safe
    assert not server_of(lambda: ProbeEnvironment()).is_concurrency_safe


def test_a_server_may_be_subclassed_and_reads_its_factory():
    class Mine(HTTPEnvServer):
        def register_routes(self, app: FastAPI, mode: ServerMode | str | None = None) -> None:
            super().register_routes(app, mode=mode)

            @app.get("/mine")
            def mine() -> str:
                return type(self._env_factory()).__name__

    app = FastAPI()
    Mine(env=ProbeEnvironment, action_cls=ProbeAction, observation_cls=ProbeObservation).register_routes(app)
    with TestClient(app) as client:
        assert client.get("/mine").json() == "ProbeEnvironment"
        assert client.post("/reset").status_code == 200
