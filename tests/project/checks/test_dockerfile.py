"""What is read of a Dockerfile."""

from __future__ import annotations

from openenv.project.image import Dockerfile

WHOLE = """\
# a comment
ARG BASE=python:3.12
FROM --platform=linux/amd64 ${BASE} AS build
USER root
RUN pip install \\
    # within an instruction
    openenv \\

    && true
EXPOSE 9000

FROM build
user 1000
EXPOSE 8000/tcp 8001
HEALTHCHECK --interval=1s \\
    CMD curl http://127.0.0.1:8000/health
CMD ["openenv", "serve", ".", "--port", "8000"]
"""


def parse(text: str) -> Dockerfile:
    return Dockerfile("Dockerfile", tuple(text.splitlines()))


def test_the_last_stage_counts_with_what_it_inherits() -> None:
    final = parse(WHOLE).stages()[-1]
    assert [each.word for each in final.instructions].count("USER") == 2
    user = final.last("USER")
    assert user is not None
    assert (user.rest, user.first) == ("1000", 13)
    assert final.last("ENTRYPOINT") is None


def test_ports_are_told_with_what_names_them() -> None:
    assert parse(WHOLE).ports() == {
        "EXPOSE 9000": (9000, 10),
        "EXPOSE 8000/tcp": (8000, 14),
        "EXPOSE 8001": (8001, 14),
        "HEALTHCHECK": (8000, 15),
        "CMD": (8000, 17),
    }


def test_an_instruction_may_go_on_over_lines() -> None:
    first = parse(WHOLE).stages()[0].last("RUN")
    assert first is not None
    assert first.rest == "pip install openenv && true"


def test_a_file_without_from_builds_nothing() -> None:
    for text in ("", "# nothing\n", "RUN true\\"):
        assert parse(text).stages() == []
        assert parse(text).ports() == {}


def test_ports_of_variables_are_not_known() -> None:
    assert parse("FROM a\nEXPOSE $PORT\nCMD serve --port ${PORT}\n").ports() == {}
    assert parse("FROM a\nCMD serve --port=81\n").ports() == {"CMD": (81, 2)}
