"""The task API: what an environment has to train and to test on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..environments import AsyncPlain, InlinePlain, Plain
from .wires import eventually

QUESTIONS: list[tuple[str, str, Any]] = [
    ("GET", "splits", None),
    ("POST", "tasks", {"split": "train"}),
    ("POST", "num_tasks", {"split": "train"}),
    ("POST", "task", {"split": "train", "index": 0}),
    ("POST", "task_range", {"split": "train", "start": 0, "stop": 1}),
]


class Quiz(Plain):
    """Five questions, by methods of an instance."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self._questions = {"train": [{"question": number} for number in range(5)], "exam": [], "test": []}

    def list_splits(self) -> list[Any]:
        return ["train", "test", "exam"]

    def list_tasks(self, split: str) -> list[Any]:
        return self._questions[split]

    def num_tasks(self, split: str) -> int:
        return len(self._questions[split])

    def get_task(self, split: str, index: int) -> Any:
        return self._questions[split][index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return self._questions[split][start:stop]


class InlineQuiz(Quiz):
    execution = "inline"


class ProcessQuiz(Quiz):
    execution = "process"


class AsyncQuiz(AsyncPlain):
    """The same, asynchronous."""

    def __init__(self) -> None:
        super().__init__()
        self._quiz = Quiz()

    async def list_splits(self) -> list[Any]:
        return self._quiz.list_splits()

    async def list_tasks(self, split: str) -> list[Any]:
        return self._quiz.list_tasks(split)

    async def num_tasks(self, split: str) -> int:
        return self._quiz.num_tasks(split)

    async def get_task(self, split: str, index: int) -> Any:
        return self._quiz.get_task(split, index)

    async def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return self._quiz.get_task_range(split, start, stop)


class MixedQuiz(Quiz):
    """The same, some of it asynchronous though its steps are not."""

    async def get_task(self, split: str, index: int) -> Any:
        return self._questions[split][index]


class InlineAsyncQuiz(MixedQuiz):
    execution = "inline"


class StaticQuiz(InlinePlain):
    """The same, without an instance."""

    threads: list[int] = []

    def __init__(self) -> None:
        raise AssertionError("it is made for nothing")

    @staticmethod
    def list_splits() -> list[Any]:
        return ["train", "test", "exam"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        cls.threads.append(threading.get_ident())
        return {"train": [{"question": number} for number in range(5)], "exam": [], "test": []}[split]

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return len(cls.list_tasks(split))

    @classmethod
    def get_task(cls, split: str, index: int) -> Any:
        return cls.list_tasks(split)[index]

    @classmethod
    async def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return cls.list_tasks(split)[start:stop]


@contextmanager
def serving(environment: Any, name: str | None = "quiz", most: int = 4, **settings: Any) -> Iterator[TestClient]:
    read = ServerSettings.read({}, **settings)
    app = create_app(environment, Action, Observation, env_name=name, max_concurrent_envs=most, settings=read)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
        eventually(lambda: app.state.openenv.active_sessions == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [Quiz, InlineQuiz, ProcessQuiz, AsyncQuiz, MixedQuiz, InlineAsyncQuiz, StaticQuiz, partial(Quiz)],
)
def test_an_environment_tells_of_its_tasks(environment):
    with serving(environment) as client:
        assert client.get("/list_environments").json() == ["quiz"]
        assert client.get("/quiz/splits").json() == [
            {"name": "train", "type": "train"},
            {"name": "test", "type": "test"},
            {"name": "exam", "type": "validation"},
        ]

        def ask(what: str, **body: Any) -> Any:
            answer = client.post(f"/quiz/{what}", json={"split": "train", **body})
            assert answer.status_code == 200, answer.text
            return answer.json()

        questions = [{"question": number} for number in range(5)]
        assert ask("tasks") == {"tasks": questions, "env_name": "quiz"}
        assert ask("num_tasks") == {"num_tasks": 5}
        assert ask("task", index=2) == {"task": {"question": 2}}
        assert ask("task_range") == {"tasks": questions}
        assert ask("task_range", start=1, stop=3) == {"tasks": questions[1:3]}
        assert ask("task_range", start=3, stop=100) == {"tasks": questions[3:]}
        assert ask("num_tasks", split="exam") == {"num_tasks": 0}


@pytest.mark.slow
@pytest.mark.parametrize("environment", [Quiz, InlineQuiz, ProcessQuiz, AsyncQuiz, MixedQuiz, StaticQuiz])
@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("task", {"index": 5}),
        ("task", {"index": -1}),
        ("task_range", {"start": -1}),
        ("task_range", {"start": 3, "stop": 1}),
        ("task_range", {"start": 0, "stop": -1}),
    ],
)
def test_an_index_out_of_range_is_400_and_says_how_many_there_are(environment, what, body):
    with serving(environment) as client:
        answer = client.post(f"/quiz/{what}", json={"split": "train", **body})
        facts = answer.json()
        assert (answer.status_code, facts["error"], facts["blame"]) == (400, "UsageError", "client")
        if (environment, what, body) != (MixedQuiz, "task", {"index": 5}):  # it waits, and is asked what does not
            assert facts["num_tasks"] == 5
            assert "there are 5, from 0 to 4" in facts["message"]
        assert facts["detail"] == facts["message"]


def test_the_one_task_of_none_is_out_of_range():
    with serving(Quiz) as client:
        facts = client.post("/quiz/task", json={"split": "exam", "index": 0}).json()
        assert (facts["num_tasks"], facts["error"]) == (0, "UsageError")
        assert "it has no tasks" in facts["message"]


@pytest.mark.slow
@pytest.mark.parametrize("environment", [Quiz, ProcessQuiz, AsyncQuiz, StaticQuiz])
def test_a_split_that_is_not_there_is_400_and_names_those_that_are(environment):
    with serving(environment) as client:
        for what, body in (("tasks", {}), ("num_tasks", {}), ("task", {"index": 1}), ("task_range", {})):
            answer = client.post(f"/quiz/{what}", json={"split": "nope", **body})
            assert answer.status_code == 400, answer.text
            assert "no split 'nope': there are train, test, exam" in answer.json()["message"]


@pytest.mark.parametrize(("method", "what", "body"), QUESTIONS)
@pytest.mark.parametrize("environment", [Plain, lambda: Plain()])
def test_an_environment_without_tasks_is_501(environment, method, what, body):
    with serving(environment) as client:
        answer = client.request(method, f"/quiz/{what}", json=body)
        facts = answer.json()
        assert (answer.status_code, facts["error"], facts["blame"]) == (501, "UsageError", "client")
        assert "has no method" in facts["message"]


@pytest.mark.parametrize(("method", "what", "body"), QUESTIONS)
@pytest.mark.parametrize("name", ["other", "Quiz", "quiz%20", "QUIZ"])
def test_another_environment_is_404_and_says_which_there_is(method, what, body, name):
    with serving(Quiz) as client:
        answer = client.request(method, f"/{name}/{what}", json=body)
        assert answer.status_code == 404
        assert "it serves 'quiz'" in answer.json()["message"]
        assert Quiz.made >= 0


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("tasks", {}),
        ("tasks", {"split": 5}),
        ("num_tasks", {"split": "train", "more": 1}),
        ("task", {"split": "train"}),
        ("task", {"split": "train", "index": "x"}),
        ("task", {"split": "train", "index": 1.5}),
        ("task_range", {"split": "train", "start": "x"}),
        ("task", [1]),
    ],
)
def test_a_body_that_makes_no_sense_is_422(what, body):
    with serving(Quiz) as client:
        answer = client.post(f"/quiz/{what}", json=body)
        assert answer.status_code == 422
        assert isinstance(answer.json()["detail"], list)


def test_an_instance_is_made_only_where_the_class_does_not_answer():
    Quiz.made = 0
    with serving(Quiz) as client:
        client.get("/quiz/splits")
        assert Quiz.made == 1
    StaticQuiz.threads.clear()
    with serving(StaticQuiz) as client:
        client.post("/quiz/tasks", json={"split": "train"})
        assert StaticQuiz.threads
        assert threading.get_ident() not in StaticQuiz.threads


def test_a_full_server_has_no_instance_to_ask():
    with serving(Quiz, most=1) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset"})
        socket.receive_json()
        answer = client.get("/quiz/splits")
        assert (answer.status_code, answer.json()["error"]) == (503, "ServerFull")
    with serving(StaticQuiz, most=1) as client:
        assert client.get("/quiz/splits").status_code == 200


class Question(BaseModel):
    text: str


@dataclass
class Riddle:
    text: str
    answer: float


class Plainly:
    def __init__(self) -> None:
        self.text = "plain"
        self._secret = object()


def test_tasks_may_be_of_any_kind_that_json_can_say():
    class Odd(Plain):
        def list_splits(self) -> Any:
            return ({"name": "mine", "type": "train", "size": 3}, Split())

        def list_tasks(self, split: str) -> Any:
            return iter([Question(text="q"), Riddle("r", float("inf")), Plainly(), np.arange(3), (1, 2), None])

    class Split:
        name = "theirs"
        type = "test"

    with serving(Odd) as client:
        assert client.get("/quiz/splits").json() == [
            {"name": "mine", "type": "train", "size": 3},
            {"name": "theirs", "type": "test"},
        ]
        tasks = client.post("/quiz/tasks", json={"split": "mine"}).json()["tasks"]
        plain, riddle = {"text": "plain"}, {"text": "r", "answer": float("inf")}
        assert tasks == [{"text": "q"}, riddle, plain, [0, 1, 2], [1, 2], None]


def test_what_json_cannot_say_and_what_fails_is_the_environments_fault():
    class Broken(Plain):
        def list_splits(self) -> Any:
            raise OSError("no disk")

        def list_tasks(self, split: str) -> Any:
            return [object]

        @staticmethod
        def num_tasks(split: str) -> int:
            raise OSError("no disk")

    with serving(Broken) as client:
        for method, path, word in (
            ("GET", "splits", "no disk"),
            ("POST", "tasks", "JSON"),
            ("POST", "num_tasks", "disk"),
        ):
            answer = client.request(method, f"/quiz/{path}", json={"split": "x"} if method == "POST" else None)
            facts = answer.json()
            assert (answer.status_code, facts["error"], facts["blame"]) == (500, "StepFailed", "environment")
            assert word in facts["message"]


def test_other_routes_are_not_shadowed():
    app = create_app(Quiz, Action, Observation, env_name="quiz", max_concurrent_envs=2)

    @app.post("/mine/tasks")
    def tasks() -> str:
        return "mine"

    @app.get("/web/{page}")
    def page(page: str) -> str:
        return page

    with TestClient(app) as client:
        assert client.post("/mine/tasks").json() == "mine"
        assert client.get("/web/splits").json() == "splits"
        assert client.get("/nowhere").json() == {"detail": "Not Found"}
        assert client.get("/a/b/c").status_code == 404
        assert client.get("/openapi.json").status_code == 200


def test_an_app_may_lie_under_a_prefix():
    from fastapi import FastAPI

    outer = FastAPI()
    inner = create_app(Quiz, Action, Observation, env_name="quiz", max_concurrent_envs=2)
    outer.mount("/inner", inner)
    with TestClient(outer) as client:
        assert client.get("/inner/quiz/splits").status_code == 200
        assert "it serves 'quiz'" in client.get("/inner/other/splits").json()["message"]
        assert client.get("/other/splits").json() == {"detail": "Not Found"}


def test_tasks_may_hold_answers_so_they_are_for_keys_of_control_alone():
    keys = "control:a-key-of-control,agent:a-key-of-an-agent,view:a-key-of-a-viewer"
    with serving(Quiz, api_keys=keys) as client:
        for key, status in (("a-key-of-control", 200), ("a-key-of-an-agent", 403), ("a-key-of-a-viewer", 403)):
            shown = {"Authorization": f"Bearer {key}"}
            for method, what, body in QUESTIONS:
                assert client.request(method, f"/quiz/{what}", json=body, headers=shown).status_code == status
            assert client.get("/list_environments", headers=shown).status_code == 200
        assert client.get("/quiz/splits").status_code == 401


def test_a_body_is_no_larger_than_a_message():
    with serving(Quiz, max_message_mb=0.001) as client:
        answer = client.post("/quiz/tasks", json={"split": "x" * 5000})
        assert (answer.status_code, answer.json()["error"]) == (413, "MessageTooLarge")
