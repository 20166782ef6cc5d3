"""Dockerfiles that are read and changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project.image import Dockerfile


def of(text: str) -> Dockerfile:
    return Dockerfile("server/Dockerfile", tuple(text.splitlines()))


def test_an_instruction_knows_its_lines() -> None:
    found = of('# syntax=x\n\nFROM a\nRUN one \\\n  # in between\n\n  && two\nCMD ["x"]\n').instructions()
    assert [(each.word, each.text, each.first, each.last) for each in found] == [
        ("FROM", "FROM a", 3, 3),
        ("RUN", "RUN one && two", 4, 7),
        ("CMD", 'CMD ["x"]', 8, 8),
    ]


def test_lines_go_on_after_the_letter_that_the_file_says() -> None:
    assert len(of("# escape=`\nFROM a\nRUN x `\n  y\nRUN C:\\\n").instructions()) == 3


def test_the_default_of_the_argument_for_the_base_is_replaced() -> None:
    changed = of("ARG BASE_IMAGE=a:1\nFROM ${BASE_IMAGE} AS build\nFROM $BASE_IMAGE\n").with_base("b:2")
    assert changed.lines[0] == "ARG BASE_IMAGE=b:2"
    assert changed.lines[1:] == ("FROM ${BASE_IMAGE} AS build", "FROM $BASE_IMAGE")


def test_every_stage_of_the_same_base_is_put_on_another_and_tools_are_left() -> None:
    text = (
        "FROM tools:1 AS uv\nFROM --platform=linux/amd64 a:1 AS build\nRUN x\n"
        "FROM build AS more\nfrom a:1\nCOPY --from=uv /x /x\n"
    )
    assert of(text).with_base("b").lines == (
        "FROM tools:1 AS uv",
        "FROM --platform=linux/amd64 b AS build",
        "RUN x",
        "FROM build AS more",
        "from b",
        "COPY --from=uv /x /x",
    )


def test_the_base_is_what_the_last_stage_is_built_on_in_the_end() -> None:
    assert of("FROM a AS One\nFROM tool\nFROM one AS two\nFROM two\n").base == "a"
    assert of("FROM a AS a\nRUN x\n").base == "a"


def test_lines_keep_their_numbers_when_an_instruction_of_several_is_replaced() -> None:
    changed = of("FROM \\\n  a:1 \\\n  AS x\nRUN y\n").with_base("b")
    assert [(each.text, each.first) for each in changed.instructions()] == [("FROM b AS x", 1), ("RUN y", 4)]


def test_a_variable_is_set_in_the_last_stage() -> None:
    assert of("FROM a\n").with_variable("X", "1").text == "FROM a\nENV X=1\n"


def test_what_only_makes_builds_quicker_is_left_out() -> None:
    text = (
        "FROM a\nRUN --mount=type=cache,target=/cache/uv \\\n    uv sync\n"
        "RUN --mount=target=/x,type=cache --mount=type=cache,target=/y make\nCOPY --link --from=b . /app\n"
    )
    found = [each.text for each in of(text).for_any_engine().instructions()]
    assert found == ["FROM a", "RUN uv sync", "RUN make", "COPY --from=b . /app"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("RUN --mount=type=secret,id=x cat /run/secrets/x", "--mount=type=secret,id=x"),
        ("RUN --network=none make", "--network=none"),
        ("COPY --chmod=755 a /a", "--chmod=755"),
        ("RUN <<EOF", "<<EOF"),
        ("COPY <<-'END' /x", "<<-'END'"),
    ],
)
def test_what_needs_buildkit_is_refused_with_its_line(line: str, what: str) -> None:
    with pytest.raises(
        UsageError, match="server/Dockerfile, line 2: .* needs BuildKit.*docker buildx build"
    ) as caught:
        of(f"FROM a\n{line}\n").for_any_engine()
    assert f"`{what}`" in caught.value.message


@pytest.mark.parametrize("line", ["RUN echo $((1<<SHIFT))", "RUN tool --mount=type=bind x", "RUN chmod --network=x"])
def test_words_of_a_command_need_nothing(line: str) -> None:
    assert of(f"FROM a\n{line}\n").for_any_engine().lines[1] == line


def test_what_is_copied_by_its_name() -> None:
    text = (
        'FROM a\nCOPY pyproject.toml wheels* /w/\nCOPY --chown=1 ["b", "/x"]\n'
        "ADD http://x/y /y\nCOPY --from=z /q /q\nCOPY . /app\n"
    )
    assert of(text).sources() == ["pyproject.toml", "b", "."]


@pytest.mark.parametrize(
    ("contents", "words"),
    [(b"", "no FROM"), (b"# FROM a\n", "no FROM"), (b"RUN x\n", "no FROM"), (b"FROM \xff\n", "cannot be read")],
)
def test_what_builds_no_image_is_refused(tmp_path: Path, contents: bytes, words: str) -> None:
    (tmp_path / "Dockerfile").write_bytes(contents)
    with pytest.raises(UsageError, match=words):
        Dockerfile.read(tmp_path / "Dockerfile")


def test_one_that_there_is_not_and_one_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dockerfile"):
        Dockerfile.read(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read"):
        Dockerfile.read(tmp_path)


def test_a_from_without_an_image_is_named_by_its_line() -> None:
    with pytest.raises(UsageError, match="line 3: `FROM a b c` names no image"):
        _ = of("\n\nFROM a b c\n").base
