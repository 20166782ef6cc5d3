from __future__ import annotations

from pathlib import Path

import pytest

from openenv.auto import AutoAction, AutoEnv
from openenv.auto.auto_env import Kind, class_of
from openenv.errors import ImportFailed, UsageError
from openenv.project.catalog import find

from .distributions import CLIENT, MODELS, files_of, install

SECOND_CLIENT = CLIENT + "\n\nclass DarkMazeEnv(EnvClient[MazeAction, MazeObservation, State]):\n    pass\n"
UNTYPED = """
from openenv import EnvClient


class MazeEnv(EnvClient):
    pass
"""


def name_of(kind: Kind) -> str:
    cls = class_of(find("maze"), kind)
    return f"{cls.__module__}:{cls.__name__}"


def test_classes_are_found_without_a_word_in_the_manifest(site: Path) -> None:
    install(site, files=files_of(manifest=None))
    assert name_of("client") == "maze_env.client:MazeEnv"
    assert name_of("action") == "maze_env.models:MazeAction"
    assert name_of("observation") == "maze_env.models:MazeObservation"


def test_the_name_of_the_class_does_not_matter(site: Path) -> None:
    client = CLIENT.replace("MazeEnv", "HTTPWayfinder")
    install(site, files=files_of(client=client, __init__=""))
    assert AutoEnv.get_env_class("maze").__name__ == "HTTPWayfinder"


def test_a_base_of_the_client_does_not_count(site: Path) -> None:
    client = CLIENT.replace("class MazeEnv(EnvClient[MazeAction, MazeObservation, State])", "class Base(EnvClient)")
    client += "\n\nclass MazeEnv(Base):\n    pass\n"
    install(site, files=files_of(client=client))
    assert name_of("client") == "maze_env.client:MazeEnv"


def test_classes_that_are_imported_or_private_do_not_count(site: Path) -> None:
    client = "from openenv.envs.echo.client import EchoEnv\n" + CLIENT + "\n\nclass _Hidden(EnvClient):\n    pass\n"
    install(site, files=files_of(client=client))
    assert name_of("client") == "maze_env.client:MazeEnv"


def test_of_several_actions_the_one_that_the_client_was_made_for(site: Path) -> None:
    models = MODELS + "\n\nclass Glance(Action):\n    where: str\n"
    install(site, files=files_of(models=models))
    assert AutoAction.from_env("maze").__name__ == "MazeAction"


def test_a_client_in_the_package_itself(site: Path) -> None:
    install(site, files={"__init__.py": CLIENT, "models.py": MODELS})
    assert name_of("client") == "maze_env:MazeEnv"
    assert name_of("action") == "maze_env.models:MazeAction"


def test_a_client_that_the_package_imports_when_it_is_asked_for(site: Path) -> None:
    init = (
        "__all__ = ['MazeEnv']\n\n\ndef __getattr__(name):\n    if name == 'MazeEnv':\n"
        "        from .inner import MazeEnv\n        return MazeEnv\n    raise AttributeError(name)\n\n\n"
        "def __dir__():\n    return __all__\n"
    )
    install(site, files={"__init__.py": init, "inner.py": CLIENT, "models.py": MODELS})
    assert name_of("client") == "maze_env.inner:MazeEnv"


def test_a_client_that_client_py_takes_from_a_module_beside_it(site: Path) -> None:
    install(site, files=files_of(__init__="", client="from .inner import MazeEnv\n", inner=CLIENT))
    assert name_of("client") == "maze_env.inner:MazeEnv"
    assert name_of("action") == "maze_env.models:MazeAction"


def test_what_a_package_cannot_give_when_it_is_asked_for_is_no_class_of_it(site: Path) -> None:
    init = (
        "def __getattr__(name):\n    if name == 'MazeServer':\n        import unheard_of\n"
        "    if name == 'MazeEnv':\n        from .inner import MazeEnv\n        return MazeEnv\n"
        "    raise AttributeError(name)\n\n\ndef __dir__():\n    return ['MazeServer', 'MazeEnv']\n"
    )
    install(site, files={"__init__.py": init, "inner.py": CLIENT, "models.py": MODELS})
    assert name_of("client") == "maze_env.inner:MazeEnv"


def test_an_untyped_client_leaves_the_action_to_the_models(site: Path) -> None:
    install(site, files=files_of(client=UNTYPED))
    assert name_of("action") == "maze_env.models:MazeAction"


def test_no_client_does_not_hide_the_action(site: Path) -> None:
    install(site, files=files_of(client=None, __init__=""))
    assert name_of("action") == "maze_env.models:MazeAction"


def test_an_environment_of_tools_has_the_actions_of_tools(site: Path) -> None:
    client = "from openenv.core.mcp_client import MCPToolClient\n\n\nclass MazeEnv(MCPToolClient):\n    pass\n"
    install(site, files={"__init__.py": "", "client.py": client})
    assert AutoEnv.get_env_class("maze").__name__ == "MazeEnv"
    assert AutoAction.from_env("maze").__name__ == "CallToolAction"
    assert AutoEnv.get_env_info("maze")["observation_class"] == "CallToolObservation"


@pytest.mark.parametrize(
    "reference", ["client:DarkMazeEnv", "maze_env.client:DarkMazeEnv", "DarkMazeEnv", "maze_env.client.DarkMazeEnv"]
)
def test_the_manifest_s_word_counts(site: Path, reference: str) -> None:
    install(site, files=files_of(client=SECOND_CLIENT, manifest=f"name: maze\nclient: {reference}\n"))
    assert name_of("client") == "maze_env.client:DarkMazeEnv"


def test_the_manifest_may_name_the_package_itself_or_another_one(site: Path) -> None:
    keys = "name: maze\nclient: maze_env:MazeEnv\naction: openenv.envs.echo.models:EchoAction\n"
    install(site, files=files_of(manifest=keys))
    assert name_of("client") == "maze_env.client:MazeEnv"
    assert name_of("action") == "openenv.envs.echo.models:EchoAction"


def test_the_action_is_that_of_the_client_which_the_manifest_names(site: Path) -> None:
    models = MODELS + "\n\nclass Feel(Action):\n    wall: str\n"
    client = CLIENT.replace("import MazeAction", "import Feel, MazeAction")
    client += "\n\nclass DarkMazeEnv(EnvClient[Feel, MazeObservation, State]):\n    pass\n"
    install(site, files=files_of(client=client, models=models, manifest="name: maze\nclient: DarkMazeEnv\n"))
    assert name_of("action") == "maze_env.models:Feel"


def test_several_clients_are_listed_with_the_key_that_says_which(site: Path) -> None:
    install(site, files=files_of(client=SECOND_CLIENT))
    with pytest.raises(UsageError) as caught:
        AutoEnv.get_env_class("maze")
    for words in ("client:DarkMazeEnv", "client:MazeEnv", "`client: module:Name`", "openenv.yaml"):
        assert words in caught.value.message


def test_several_actions_are_listed_where_the_client_does_not_say(site: Path) -> None:
    models = MODELS + "\n\nclass Glance(Action):\n    where: str\n"
    install(site, files=files_of(models=models, client=UNTYPED))
    with pytest.raises(UsageError, match=r"models:Glance, models:MazeAction.*`action: module:Name`"):
        AutoAction.from_env("maze")
    assert AutoEnv.get_env_info("maze")["action_class"] is None


@pytest.mark.parametrize("kind", ["client", "action"])
def test_none_at_all_says_which_key_is_missing(site: Path, kind: Kind) -> None:
    install(site, files={"__init__.py": ""})
    with pytest.raises(UsageError, match=rf"has no subclass of .*`{kind}: module:Name` in its openenv\.yaml"):
        class_of(find("maze"), kind)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("client:NoSuchEnv", "maze_env.client has no 'NoSuchEnv'"),
        ("nowhere:MazeEnv", "no module 'nowhere'"),
        ("NoSuchEnv", r"there is no NoSuchEnv in client\.py"),
        ("models:MazeAction", "must be a subclass of EnvClient"),
        ("client:__doc__", "must be a subclass of EnvClient"),
    ],
)
def test_a_key_that_names_no_client_is_told_with_its_file(site: Path, reference: str, words: str) -> None:
    install(site, files=files_of(manifest=f"name: maze\nclient: {reference}\n"))
    with pytest.raises(UsageError, match=words) as caught:
        AutoEnv.get_env_class("maze")
    assert str(site / "maze_env" / "openenv.yaml") in caught.value.message
    assert reference in caught.value.message


@pytest.mark.parametrize("file", ["__init__.py", "client.py", "models.py"])
def test_a_package_that_cannot_be_imported_names_import_and_file(site: Path, file: str) -> None:
    files = files_of()
    files[file] = "import unheard_of\n"
    install(site, files=files)
    for look in (AutoEnv.get_env_class, AutoEnv.get_env_info, AutoAction.from_env, AutoAction.get_action_info):
        with pytest.raises(ImportFailed) as caught:
            look("maze")
        for words in ("maze_env", str(site / "maze_env" / file), "line 1", "install unheard_of"):
            assert words in caught.value.message


def test_a_manifest_that_is_not_valid_is_told(site: Path) -> None:
    install(site, files=files_of(manifest="port: many\n"))
    with pytest.raises(UsageError, match=r"maze_env/openenv\.yaml: line 1, column 7: `port`"):
        AutoEnv.get_env_class("maze")


def test_what_a_package_cannot_give_is_told_where_there_is_no_other_class(site: Path) -> None:
    init = "def __getattr__(name):\n    import unheard_of\n\n\ndef __dir__():\n    return ['MazeEnv']\n"
    install(site, files={"__init__.py": init})
    with pytest.raises(ImportFailed, match="install unheard_of"):
        AutoEnv.get_env_class("maze")
