from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from openenv import State
from openenv.client import GenericEnvClient
from openenv.errors import ConcurrencyConfigurationError, ImportFailed, MissingExtra, NotAProject, UsageError
from openenv.project import Project
from openenv.project.target import bundled, load

from ..cli.projects import ENVIRONMENT, MODELS, write_module, write_project
from ..modules import forget

GUESS = MODELS + ENVIRONMENT.format(imports="", hint="no")


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    """Works in an empty folder; modules and search paths of a test are forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    forget(tmp_path)


def server_of(app):
    assert isinstance(app, FastAPI)
    return app.state.openenv


async def hint_of(app):
    async with GenericEnvClient(app=app) as env:
        await env.reset()
        return (await env.step({"number": 3})).observation["hint"]


# module:attribute


async def test_an_app_in_a_module_of_the_working_directory(somewhere):
    write_module(
        somewhere / "my_app.py",
        GUESS + "\nfrom openenv.server import create_app\napp = create_app(Guess, GuessAction, GuessObservation)\n",
    )
    app = load("my_app:app")
    assert app is sys.modules["my_app"].app
    assert await hint_of(app) == "no"


def test_an_attribute_may_be_inside_another(somewhere):
    write_module(somewhere / "nested.py", "class Site:\n    async def app(scope, receive, send): ...\n")
    assert load("nested:Site.app") is sys.modules["nested"].Site.app


def test_a_module_may_be_inside_a_package(somewhere):
    (somewhere / "shop").mkdir()
    write_module(somewhere / "shop" / "till.py", GUESS)
    assert server_of(load("shop.till:Guess")).env_name == "Guess"


async def test_an_environment_class_with_its_types(somewhere):
    write_module(somewhere / "game.py", GUESS)
    app = load("game:Guess")
    game = sys.modules["game"]
    server = server_of(app)
    assert (server.action_cls, server.observation_cls, server.state_cls) == (
        game.GuessAction,
        game.GuessObservation,
        State,
    )
    assert await hint_of(app) == "no"


ANNOTATED = """
{future}
from openenv import Action, Environment, Observation, State


class GuessAction(Action):
    number: int


class GuessObservation(Observation):
    hint: str


class Guess(Environment):
    def reset(self):
        return GuessObservation(hint="guess")

    def step(self{action}){observation}:
        return GuessObservation(hint="annotated")

    @property
    def state(self):
        return State()
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
async def test_an_environment_class_whose_step_is_annotated(somewhere, future):
    write_module(
        somewhere / "game.py",
        ANNOTATED.format(future=future, action=", action: GuessAction", observation=" -> GuessObservation"),
    )
    assert await hint_of(load("game:Guess")) == "annotated"


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        (", action", ""),
        (", action: GuessAction", ""),
        (", action", " -> GuessObservation"),
        (", action: dict", " -> GuessObservation"),
        (", action: GuessAction", " -> dict"),
        (", action: 'Unheard'", " -> GuessObservation"),
        ("", " -> GuessObservation"),
    ],
)
def test_an_environment_class_without_its_types_says_how_to_declare_them(somewhere, action, observation):
    write_module(somewhere / "game.py", ANNOTATED.format(future="", action=action, observation=observation))
    with pytest.raises(UsageError, match=r"class Guess\(Environment\[MyAction") as caught:
        load("game:Guess")
    assert caught.value.message.startswith("game:Guess: ")


def test_the_types_of_a_base_between_ours_and_the_user_s(somewhere):
    write_module(
        somewhere / "game.py",
        GUESS
        + """
from typing import TypeVar

S = TypeVar("S")


class Base(Environment[GuessAction, GuessObservation, S]):
    reset, step, state = Guess.reset, Guess.step, Guess.state


class Other(State):
    level: int = 1


class Typed(Base[Other]):
    pass
""",
    )
    server = server_of(load("game:Typed"))
    game = sys.modules["game"]
    assert (server.action_cls, server.observation_cls, server.state_cls) == (
        game.GuessAction,
        game.GuessObservation,
        game.Other,
    )


def test_what_can_be_called_is_an_app_and_nothing_else_is(somewhere):
    write_module(somewhere / "things.py", "async def app(scope, receive, send): ...\nnumber = 3\n")
    assert load("things:app") is sys.modules["things"].app
    with pytest.raises(UsageError, match="things:number is an object of type int"):
        load("things:number")


@pytest.mark.parametrize("target", ["nowhere:app", "nowhere.at.all:app"])
def test_a_module_that_is_not_there(somewhere, target):
    with pytest.raises(UsageError, match=r"no module 'nowhere'") as caught:
        load(target)
    assert str(somewhere) in caught.value.message
    assert target in caught.value.message


def test_a_package_without_that_module(somewhere):
    (somewhere / "shop").mkdir()
    (somewhere / "shop" / "__init__.py").touch()
    with pytest.raises(UsageError, match=r"shop\.till:app: no module 'shop\.till'"):
        load("shop.till:app")


def test_a_module_that_needs_what_is_not_installed(somewhere):
    write_module(somewhere / "needy.py", "import unheard_of\n")
    with pytest.raises(ImportFailed, match=r"needy:app: importing needy failed: .*needy\.py, line 1.*install un"):
        load("needy:app")


def test_a_module_that_fails_shows_its_own_error_and_where_it_was_raised(somewhere):
    write_module(somewhere / "broken.py", "raise LookupError('inside')\n")
    with pytest.raises(ImportFailed, match=r"LookupError: inside in .*broken\.py, line 1") as caught:
        load("broken:app")
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("attribute", ["app", "App.app", ""])
def test_an_attribute_that_is_not_there(somewhere, attribute):
    write_module(somewhere / "empty.py", "")
    with pytest.raises(UsageError, match=f"module empty has no '{attribute}'"):
        load(f"empty:{attribute}")


@pytest.mark.parametrize("target", ["", "nothing", "some/folder", ".", "no_such.module"])
def test_what_is_nothing_to_serve_says_what_could_be(target):
    with pytest.raises(UsageError) as caught:
        load(target)
    for part in (repr(target), "module:attribute", "openenv.yaml", "gymnasium:", "benchmark", "echo"):
        assert part in caught.value.message


@pytest.mark.parametrize("target", [":app", ".near:app", "..near:app", "a..b:app"])
def test_what_is_no_name_of_a_module(target):
    with pytest.raises(UsageError, match="module") as caught:
        load(target)
    assert target in caught.value.message


# Folders


@pytest.mark.parametrize("package", [True, False])
async def test_a_project(somewhere, package):
    write_project(somewhere / "guess_env", package=package, hint="from the project")
    assert await hint_of(load("guess_env")) == "from the project"


@pytest.mark.parametrize("package", [True, False])
async def test_the_project_we_stand_in(somewhere, monkeypatch, package):
    folder = write_project(somewhere / "guess_env", package=package)
    monkeypatch.chdir(folder)
    assert await hint_of(load(".")) == "no"


async def test_a_project_elsewhere_whose_folder_is_no_identifier(somewhere):
    folder = write_project(somewhere / "away" / "guess-env", package=True)
    assert await hint_of(load(str(folder))) == "no"


async def test_a_manifest_that_does_not_name_the_app_means_the_usual_one(somewhere):
    write_project(somewhere / "guess_env", package=False, manifest="name: guess\n")
    assert await hint_of(load("guess_env")) == "no"


async def test_a_manifest_may_name_an_environment_class(somewhere):
    write_project(somewhere / "guess_env", package=True, manifest="app: server.guess_environment:Guess\n")
    assert server_of(load("guess_env")).env_name == "Guess"


async def test_a_manifest_that_names_an_environment_and_no_app(somewhere):
    write_project(somewhere / "guess_env", package=True, manifest="environment: server.guess_environment:Guess\n")
    assert server_of(load("guess_env")).env_name == "Guess"


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ("app: [", "is not valid YAML"),
        ("", "is empty"),
        ("- app", "is a list: it must have keys and values"),
        ("app: server.app\n", "`app` must be module:attribute"),
        ("app: 3\n", "`app` must be module:attribute"),
        ("environment: Guess\n", "write module:Guess"),
        ("app: server.nothing:app\n", "no module 'server.nothing'"),
        ("app: server.app:nothing\n", "has no 'nothing'"),
        ("app: server.app:GuessAction\n", "is another class: it must be an app or an Environment class"),
    ],
)
def test_a_manifest_that_is_wrong_is_named(somewhere, manifest, fault):
    write_project(somewhere / "guess_env", package=False, manifest=manifest)
    with pytest.raises(UsageError, match=fault) as caught:
        load("guess_env")
    assert str(somewhere / "guess_env" / "openenv.yaml") in caught.value.message


# Names


@pytest.mark.parametrize("name", ["benchmark", "echo"])
def test_bundled_environments(name):
    assert name in bundled()
    assert server_of(load(name)).env_name == name


def test_bundled_names_are_sorted():
    assert list(bundled()) == sorted(bundled())


def test_a_bundled_name_wins_over_a_folder(somewhere):
    write_project(somewhere / "echo", package=False)
    assert server_of(load("echo")).env_name == "echo"


def test_gymnasium():
    pytest.importorskip("gymnasium")
    assert "CartPole-v1" in server_of(load("gymnasium:CartPole-v1")).env_name


def test_a_gymnasium_environment_that_is_not_there():
    pytest.importorskip("gymnasium")
    with pytest.raises(UsageError, match="NoSuchGame"):
        load("gymnasium:NoSuchGame-v7")


def test_gymnasium_that_is_not_installed(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("gymnasium", "openenv.adapters"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"pip install 'openenv\[gymnasium\]'"):
        load("gymnasium:CartPole-v1")


# Settings


def test_a_limit_from_the_command_line_wins_over_that_of_the_app(somewhere, monkeypatch):
    write_project(somewhere / "guess_env", package=True, limit=3)
    monkeypatch.setenv("OPENENV_MAX_SESSIONS", "7")
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "9")
    assert server_of(load("guess_env")).max_concurrent_envs == 7


@pytest.mark.parametrize(("limit", "most"), [(3, 3), (None, 9)])
def test_max_concurrent_envs_is_for_apps_without_a_limit(somewhere, monkeypatch, limit, most):
    write_project(somewhere / "guess_env", package=True, limit=limit)
    monkeypatch.delenv("OPENENV_MAX_SESSIONS", raising=False)
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "9")
    assert server_of(load("guess_env")).max_concurrent_envs == most


def test_more_sessions_than_the_class_supports(somewhere, monkeypatch):
    write_module(somewhere / "game.py", GUESS.replace("SUPPORTS_CONCURRENT_SESSIONS = True", "pass"))
    monkeypatch.setenv("OPENENV_MAX_SESSIONS", "2")
    with pytest.raises(ConcurrencyConfigurationError, match="Guess"):
        load("game:Guess")


def test_what_no_folder_can_be_called_is_one_line() -> None:
    with pytest.raises(UsageError, match="cannot be accessed: File name too long; use module:attribute, a folder"):
        load("x" * 300)
    with pytest.raises(NotAProject, match="cannot be accessed: File name too long; use the folder that has"):
        Project.find(Path("x" * 300))
