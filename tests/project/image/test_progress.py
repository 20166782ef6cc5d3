"""What an engine says while it builds."""

from __future__ import annotations

from openenv.project.image import Dockerfile
from openenv.project.image.progress import TAIL_LINES, BuildSteps

DOCKERFILE = Dockerfile("Dockerfile", ("# comment", "FROM a", "RUN pip \\", "    install x", "CMD y"))


def steps(*events: dict[str, object], secrets: tuple[str, ...] = ()) -> BuildSteps:
    found = BuildSteps(DOCKERFILE, list(secrets))
    for event in events:
        found.note(event)
    return found


def said(text: str) -> dict[str, object]:
    return {"stream": text}


def test_steps_are_counted_and_known_whether_they_were_there() -> None:
    found = steps(
        said("Step 1/3 : FROM a\n"),
        said(" ---> 0123\n"),
        said("Step 2/3 : RUN pip     install x\n"),
        said(" ---> Using cache\n"),
        said("Step 3/3 : CMD y\n"),
        said(" ---> Running in 4567\n"),
        {"aux": {"ID": "sha256:1"}},
        said("Successfully built 89\n"),
    )
    found.finish()
    assert [(step.number, step.text, step.cached) for step in found.all] == [
        (1, "FROM a", False),
        (2, "RUN pip install x", True),
        (3, "CMD y", False),
    ]
    assert all(step.seconds is not None for step in found.all)
    assert found.image == "sha256:1"
    assert found.failure is None


def test_an_engine_that_does_not_say_the_whole_id() -> None:
    assert steps(said("Step 1/1 : FROM a\n"), said("Successfully built 0123\n")).image == "0123"


def test_what_is_shown_is_each_step_and_what_it_writes_without_colours() -> None:
    found = BuildSteps(DOCKERFILE, [])
    (begun,) = found.note(said("Step 1/3 : FROM a"))
    assert (begun.step.number, begun.total, begun.running, begun.ended) == (1, 3, False, False)
    (line,) = found.note(said("\x1b[91mone\x1b[0m\n\n"))
    assert (line.line, line.running) == ("one", True)
    ended, begun = found.note(said("Step 2/3 : RUN x"))
    assert (ended.step.number, ended.ended, begun.step.number) == (1, True, 2)


def test_a_base_that_is_fetched_is_shown_without_every_byte() -> None:
    found = steps(said("Step 1/1 : FROM a"))
    assert found.note({"status": "Downloading", "id": "b", "progressDetail": {"current": 1}}) == []
    assert [each.line for each in found.note({"status": "Pull complete", "id": "b"})] == ["b: Pull complete"]


def test_a_command_that_fails_is_named_by_step_line_and_its_last_lines() -> None:
    events = [said(f"line {number}\n") for number in range(TAIL_LINES + 5)]
    error = "The command '/bin/sh -c pip install x' returned a non-zero code: 7"
    failure = steps(
        said("Step 1/3 : FROM a\n"), said("Step 2/3 : RUN pip install x\n"), *events, {"error": error}
    ).failure
    assert failure is not None
    assert (failure.step, failure.line, failure.text) == (2, 3, "RUN pip install x")
    assert failure.reason == "the command ended with exit code 7"
    assert failure.log == tuple(f"line {number}" for number in range(5, TAIL_LINES + 5))


def test_a_dockerfile_that_cannot_be_read_is_named_by_its_line() -> None:
    failure = steps({"message": "dockerfile parse error line 4: unknown instruction: INSTALL"}).failure
    assert failure is not None
    assert (failure.step, failure.line) == (0, 4)
    odd = BuildSteps(Dockerfile("Dockerfile", ("FROM a", "", "INSTALL x")), [])
    odd.note({"error": "unknown instruction: INSTALL"})
    assert odd.failure is not None
    assert odd.failure.line == 3


def test_secrets_are_in_nothing_that_is_shown() -> None:
    found = BuildSteps(DOCKERFILE, ["hush-hush"])
    shown = [
        *found.note(said("Step 1/1 : RUN curl hush-hush\n")),
        *found.note(said("the key is hush-hush\n")),
        *found.note(said("[Warning] hush-hush was not consumed\n")),
        *found.note({"error": "no hush-hush"}),
    ]
    assert "hush-hush" not in repr((shown, found.all, found.failure, found.warnings))
    assert found.warnings == ["*** was not consumed"]


def test_what_comes_before_the_first_step_and_what_is_odd_is_passed_over() -> None:
    found = steps(said("\n"), {}, {"aux": None}, said("hello"), {"status": "Preparing"})
    assert (found.all, found.image, found.failure) == ([], None, None)
    assert found.finish() == []


def test_an_engine_with_other_words_that_counts_each_stage_anew() -> None:
    found = BuildSteps(Dockerfile("Dockerfile", ("ARG A", "FROM a AS b", "RUN x", "FROM a", "COPY . /", "RUN y")), [])
    for text in (
        "[1/2] STEP 1/2: FROM a AS b",
        "[1/2] STEP 2/2: RUN x",
        "--> Using cache " + "0" * 64,
        "0" * 64,
        "[2/2] STEP 1/3: FROM a",
        "[2/2] STEP 2/3: COPY . /",
        "[2/2] STEP 3/3: RUN y",
        "--> 0123",
    ):
        found.note(said(text + "\n"))
    assert [(step.line, step.cached) for step in found.all] == [
        (2, False),
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]
