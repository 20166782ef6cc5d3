"""`PyExecutor`, with a stand-in for smolagents: the one class of it that is used."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from openenv.errors import MissingExtra
from openenv.tools import PyExecutor


class Output(NamedTuple):
    output: Any
    logs: str


class LocalPythonExecutor:
    """Evaluates an expression, with what it was given and a `say`."""

    def __init__(self, additional_authorized_imports: list[str]):
        self.allowed = additional_authorized_imports
        self.tools: dict[str, Any] = {}

    def send_tools(self, tools: dict[str, Any]) -> None:
        self.tools = dict(tools)

    def __call__(self, code: str) -> Output:
        said: list[str] = []
        scope = {**self.tools, "say": said.append, "allowed": self.allowed}
        return Output(eval(code, scope), "\n".join(said))


@pytest.fixture
def smolagents(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("smolagents")
    library.LocalPythonExecutor = LocalPythonExecutor
    monkeypatch.setitem(sys.modules, "smolagents", library)


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("1 + 1", "2"),
        ("'text'", '"text"'),
        ("[1, None]", "[1, null]"),
        ("{1}", "{1}"),
        ("None", ""),
        ("say('a')", "a"),
        ("[say('a'), 2][1]", "a\n2"),
        ("safe_json_dumps({'a': {1}})", '"{\\"a\\": \\"{1}\\"}"'),
        ("format_exc()", '"NoneType: None\\n"'),
        ("allowed", '["math"]'),
    ],
)
def test_what_code_says_and_its_last_value_are_its_output(smolagents, code, stdout):
    result = PyExecutor(["math"]).run(code)
    assert (result.stdout, result.stderr, result.exit_code) == (stdout, "", 0)


def test_code_that_raises_is_a_result_with_its_traceback(smolagents):
    result = PyExecutor().run("1 / 0")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "ZeroDivisionError" in result.stderr


def test_without_smolagents_the_constructor_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "smolagents", None)
    with pytest.raises(MissingExtra, match="pip install smolagents"):
        PyExecutor()
