from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from openenv import __version__
from openenv.cli import main
from openenv.envs.echo.server.app import app as echo
from openenv.server import create_app
from openenv.settings import ServerSettings

from ..client.environments import Counter, CounterAction, CounterObservation
from ..modules import forget
from ..server.wires import served
from .projects import write_module, write_project

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Works in an empty folder; modules and search paths of a test are forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    forget(tmp_path)


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `openenv contract ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "contract", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """The file after a change of what it holds."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return str(file)


def test_a_dump_has_schemas_hash_and_version(contract: Run) -> None:
    code, out, _ = contract("dump", "echo")
    document = json.loads(out)
    assert code == 0
    assert document["openenv"] == __version__
    assert document["hash"] == echo.state.openenv.contract.hash
    assert document["schemas"]["action"]["properties"]["message"] == {"type": "string"}


def test_what_was_dumped_is_the_same(contract: Run, somewhere: Path) -> None:
    assert contract("dump", "echo", "-o", "echo.json") == (0, "", "")
    code, out, _ = contract("check", "echo", "echo.json")
    assert (code, out) == (0, f"the same ({echo.state.openenv.contract.hash})\n")
    assert contract("dump", "echo")[1] == (somewhere / "echo.json").read_text()


def test_each_field_that_differs_is_named(contract: Run, somewhere: Path) -> None:
    contract("dump", "echo", "-o", "echo.json")

    def change(document: dict[str, Any]) -> None:
        document["schemas"]["action"]["properties"]["message"] = {"type": "integer"}
        document["schemas"]["observation"]["properties"]["older"] = {"type": "boolean"}

    file = changed(somewhere / "echo.json", change)
    code, out, _ = contract("check", "echo", file)
    assert code == 1
    assert out.splitlines() == [
        f"action.message: string now, integer in {file}",
        f"observation.older: absent now, boolean in {file}",
        "2 different",
    ]


def test_differences_as_json(contract: Run, somewhere: Path) -> None:
    contract("dump", "echo", "-o", "echo.json")
    assert json.loads(contract("check", "echo", "echo.json", "--json")[1])["same"] is True

    def change(document: dict[str, Any]) -> None:
        document["schemas"]["action"]["properties"]["message"] = {"type": "integer"}

    code, out, _ = contract("check", "echo", changed(somewhere / "echo.json", change), "--json")
    report = json.loads(out)
    assert (code, report["same"], report["not_compared"]) == (1, False, [])
    assert report["differences"] == [{"place": "action.message", "now": "string", "file": "integer"}]
    assert report["hash"]["now"] != report["hash"]["file"]


def test_a_part_without_a_schema_is_mentioned_and_not_compared(contract: Run, somewhere: Path) -> None:
    contract("dump", "echo", "-o", "echo.json")
    file = changed(somewhere / "echo.json", lambda document: document["schemas"].update(action=None))
    code, out, _ = contract("check", "echo", file)
    assert code == 0
    assert "action: not compared, since it has a schema only now" in out


def test_a_project_of_one_s_own(contract: Run, somewhere: Path) -> None:
    write_project(somewhere / "guess_env", package=True)
    assert contract("dump", "guess_env", "-o", "guess.json")[0] == 0
    schemas = json.loads((somewhere / "guess.json").read_text())["schemas"]
    assert schemas["observation"]["required"] == ["hint"]
    assert contract("check", "guess_env", "guess.json")[0] == 0


def test_a_server_is_asked_for_its_own(contract: Run) -> None:
    app = create_app(Counter, CounterAction, CounterObservation, settings=ServerSettings())
    with served(app) as address:
        assert contract("dump", "--url", f"http://{address}", "-o", "here.json")[0] == 0
        assert contract("check", "--url", f"ws://{address}/ws", "here.json")[0] == 0
        code, out, _ = contract("check", "echo", "here.json")
    assert code == 1
    assert "action.by: absent now, integer in here.json" in out


def test_types_of_a_target_and_of_a_server(contract: Run, somewhere: Path) -> None:
    code, out, _ = contract("types", "echo")
    assert (code, "export interface EchoAction {" in out) == (0, True)
    assert f"Contract {echo.state.openenv.contract.hash}." in out
    with served(echo) as address:
        options = ("--url", f"http://{address}", "--language", "typescript", "-o", "echo.ts")
        assert contract("types", *options) == (0, "", "")
    assert (somewhere / "echo.ts").read_text() == out
    code, _, err = contract("types")
    assert (code, "--url" in err) == (2, True)


def test_a_server_that_wants_a_key(contract: Run) -> None:
    app = create_app(
        Counter, CounterAction, CounterObservation, settings=ServerSettings(api_keys="view:seeing-is-all-it-may")
    )
    with served(app) as address:
        code, _, err = contract("dump", "--url", address)
        assert (code, "--api-key" in err) == (2, True)
        assert contract("dump", "--url", address, "--api-key", "seeing-is-all-it-may")[0] == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "answers with status 404"),
        (lambda: PlainTextResponse("hello"), "did not answer with a JSON Schema"),
        (
            lambda: PlainTextResponse('{"action": {"enum": 3}}'),
            "did not return a JSON Schema: enum must be a list, got 3",
        ),
    ],
)
def test_a_server_of_something_else_is_no_answer(contract: Run, answer: Any, words: str) -> None:
    app = FastAPI()
    if answer is not None:
        app.add_api_route("/schema", answer)
    with served(app) as address:
        code, _, err = contract("dump", "--url", address)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dump",), "give a target, or the --url"),
        (("dump", "echo", "--url", "localhost:1"), "give a target, or the --url"),
        (("dump", "nothing"), "cannot be served"),
        (("dump", "--url", "localhost:1"), "no answer from http://localhost:1"),
        (("dump", "--url", "ftp://localhost"), "ftp"),
        (("dump", "echo", "-o", "no/such/folder.json"), "cannot be written"),
        (("check", "echo"), "TARGET and FILE"),
        (("check", "--url", "localhost:1", "echo", "file.json"), "TARGET and FILE"),
        (("check", "echo", "absent.json"), "absent.json cannot be read"),
        (("check", "echo", "prose.json"), "prose.json is not valid JSON"),
        (("check", "echo", "list.json"), "list.json contains no schemas"),
        (("check", "echo", "odd.json"), "odd.json: enum must be a list, got 'a'"),
        (("check", "bare:app", "odd.json"), "odd.json"),
        (("dump", "bare:app"), "the types of bare:app are unknown"),
        (("dump", "broken:app"), "importing broken failed"),
    ],
)
def test_a_question_without_an_answer_is_exit_code_2(
    contract: Run, somewhere: Path, arguments: tuple[str, ...], words: str
) -> None:
    (somewhere / "prose.json").write_text("once upon a time")
    (somewhere / "list.json").write_text("[]")
    (somewhere / "odd.json").write_text('{"schemas": {"action": {"enum": "a"}}}')
    write_module(somewhere / "bare.py", "async def app(scope, receive, send): ...\n")
    write_module(somewhere / "broken.py", "import unheard_of\n")
    code, out, err = contract(*arguments)
    assert (code, out) == (2, "")
    assert words in err
