from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from openenv.auto import AutoAction, AutoEnv, auto_env
from openenv.auto.auto_env import SpacePackage
from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, UnknownEnvironment, UsageError

from .distributions import install

# What stands in for uv: it says how it was called, and does what a test wrote into a file beside it.
INSTALLER = """#!{python}
import pathlib, runpy, sys
here = pathlib.Path(__file__).parent
(here / "called").write_text(" ".join(sys.argv[1:]))
runpy.run_path(str(here / "does.py"))
"""


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installer that is found before any other; `does.py` is what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(INSTALLER.format(python=sys.executable))
    (folder / "uv").chmod(0o755)
    (folder / "does.py").write_text("raise SystemExit('not to be called')")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def installs(installer: Path, site: Path, **origin: str) -> None:
    root = Path(__file__).parents[2]
    (installer / "does.py").write_text(
        f"import sys; sys.path.insert(0, {str(root)!r})\nfrom pathlib import Path\n"
        f"from tests.auto.distributions import install\ninstall(Path({str(site)!r}), origin={origin!r})\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        "user/maze_env",
        "spaces/user/maze_env",
        "https://hub.example/spaces/user/maze_env",
        "https://hub.example/spaces/user/maze_env.git",
        "https://hub.example/spaces/user/maze_env/",
    ],
)
def test_the_ways_to_write_a_space(name: str) -> None:
    assert SpacePackage.parse(name) == ("user", "maze_env")


@pytest.mark.parametrize(
    "name", ["user/", "/maze", "a/b/c", "user/maze env", "user/maze;rm", "user/--maze x", "../maze"]
)
def test_what_is_no_space(name: str) -> None:
    with pytest.raises(UsageError, match=r"write owner/(name|user)"):
        AutoEnv.get_env_class(name)


def test_where_a_space_is(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SpacePackage("User", "Maze_env")
    assert found.url == "https://user-maze-env.hf.space"
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/")
    assert found.git_url == "https://hub.example/spaces/User/Maze_env"


def test_a_space_is_not_installed_without_trust(site: Path, installer: Path) -> None:
    for look in (AutoEnv.from_env, AutoEnv.from_hub, AutoEnv.get_env_class, AutoAction.from_env):
        with pytest.raises(UsageError, match=r"trust_remote_code=True.*OPENENV_TRUST_REMOTE_CODE.*skip_install"):
            look("user/maze_env")
    assert not (installer / "called").exists()


def test_without_installing_it_is_used_where_it_is_served(site: Path, installer: Path) -> None:
    client = AutoEnv.from_env("user/maze_env", skip_install=True)
    assert type(client) is GenericEnvClient
    assert client._url == "wss://user-maze-env.hf.space/ws"


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_trusted_space_is_installed_once(
    site: Path, installer: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    if how == "variable":
        monkeypatch.setenv("OPENENV_TRUST_REMOTE_CODE", "1")
    installs(installer, site, url="https://hub.example/spaces/user/maze_env", vcs="git")
    client = AutoEnv.from_env("user/maze_env", trust_remote_code=how == "argument")
    assert (type(client).__name__, client._url) == ("MazeEnv", "wss://user-maze-env.hf.space/ws")
    called = (installer / "called").read_text()
    assert called == f"pip install --python {sys.executable} git+https://hub.example/spaces/user/maze_env"
    (installer / "called").unlink()
    monkeypatch.delenv("OPENENV_TRUST_REMOTE_CODE", raising=False)
    assert AutoAction.from_env("user/maze_env").__name__ == "MazeAction"
    assert AutoEnv.from_env("user/maze_env", base_url="localhost:8000")._url == "ws://localhost:8000/ws"
    assert not (installer / "called").exists()


def test_an_installed_package_of_its_name_is_used(site: Path, installer: Path) -> None:
    install(site)
    assert AutoEnv.get_env_class("user/maze_env").__name__ == "MazeEnv"
    assert not (installer / "called").exists()


def test_a_package_of_its_name_from_another_repository_is_not_taken_for_it(site: Path, installer: Path) -> None:
    install(site, origin={"url": "https://hub.example/spaces/mallory/maze_env.git"})
    with pytest.raises(UsageError, match="user/maze_env is not installed"):
        AutoEnv.get_env_class("user/maze_env")


def test_a_package_from_that_space_is_used_before_one_of_its_name(site: Path, installer: Path) -> None:
    install(site)
    install(site, "openenv-fog", "fog", origin={"url": "https://hub.example/spaces/user/maze_env.git"})
    assert AutoEnv.get_env_info("user/maze_env")["package"] == "openenv-fog"


def test_an_installer_that_fails_has_its_last_words_told(site: Path, installer: Path) -> None:
    (installer / "does.py").write_text(
        "import sys\nprint('no such repository', file=sys.stderr)\nraise SystemExit(3)\n"
    )
    with pytest.raises(
        LaunchFailed, match=r"git\+.*user/maze_env could not be installed \(exit code 3\):\n.*repository"
    ):
        AutoEnv.from_env("user/maze_env", trust_remote_code=True)


def test_an_installer_that_hangs_is_given_up(site: Path, installer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_env, "INSTALL_TIMEOUT_S", 0.3)
    (installer / "does.py").write_text("import signal\nsignal.pause()\n")
    with pytest.raises(LaunchFailed, match=r"took more than 0\.3 s"):
        AutoEnv.from_env("user/maze_env", trust_remote_code=True)


def test_what_is_installed_may_be_no_environment(site: Path, installer: Path) -> None:
    (installer / "does.py").write_text("")
    with pytest.raises(UnknownEnvironment, match=r"was installed, but contains no distribution openenv-\*"):
        AutoEnv.from_env("user/maze_env", trust_remote_code=True)
