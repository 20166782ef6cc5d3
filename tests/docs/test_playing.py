"""A page that is not true fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import commands, names
from .page import Page
from .playing import play_page


def page(*blocks: str) -> Page:
    return Page("page.md", "\n\n".join(f"{block}\n```" for block in blocks))


@pytest.mark.real
def test_shell_python_and_files_share_a_folder_in_the_order_of_the_page(tmp_path: Path) -> None:
    play_page(
        page(
            "```sh\nmkdir inner && cd inner && WORD=here",
            '```python title="told.py"\nWORD = "told"',
            "```python\nfrom told import WORD\nprint(WORD)  # > told",
            '```sh\necho "$WORD"; ls\n#> here\n#> told.py',
            "```python\nimport asyncio\nawait asyncio.sleep(0)\nprint(WORD.upper())  # > TOLD",
        ),
        tmp_path,
    )


@pytest.mark.real
@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("```sh\nfalse", "page.md:2: exit code 1"),
        ("```sh\necho one\n#> two", "page.md:2 promises 'two' and prints:\none"),
        ("```python\nprint(1)\nprint(2)\n# > 2\n# > 1", "promises '1'"),
        ("```python\nraise RuntimeError('no')", "RuntimeError: no"),
        ("```python\nx = 1\n\nundefined", 'File "page.md:2", line 3'),
        ("<!-- background -->\n```sh\ntrue", "page.md:3: no address was announced"),
    ],
)
def test_a_block_that_fails_or_lies_is_told_by_its_line(block: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failed:
        play_page(page(block), tmp_path)
    assert says in str(failed.value)


@pytest.mark.real
def test_what_needs_more_is_left_out_unless_it_is_there(tmp_path: Path) -> None:
    needy = page("<!-- needs: docker -->\n```sh\nfalse")
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    play_page(needy, tmp_path / "without")
    with pytest.raises(AssertionError, match="exit code 1"):
        play_page(needy, tmp_path / "with", frozenset({"docker"}))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("openenv serve echo --no-such-option", "No such option '--no-such-option'"),
        ("FOO=1 openenv swerve | cat", "openenv has no command swerve"),
        ("ls && openenv bench scale --prozesse 2", "--prozesse"),
        ("openenv gateway render --backends a:1 --format apache --output-dir x", "'apache' is not one of"),
        ("openenv top one two", "does not take two"),
        ("for x in 1; do openenv serve --port; done", "requires an argument"),
        ("make coffee", "make has no verb coffee"),
        ("python -m tests.nothing_here", "no module tests.nothing_here"),
        ("python scripts/nothing.py", "there is no scripts/nothing.py"),
        ("if true; then", "unexpected end of file"),
    ],
)
def test_a_stale_command_is_found_without_running_it(script: str, says: str) -> None:
    assert says in "\n".join(commands.complaints(script))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("from openenv import NoSuchName", "openenv has no NoSuchName"),
        ("from openenv.nowhere import x", "No module named 'openenv.nowhere'"),
        ("import openenv.nowhere", "there is no module openenv.nowhere"),
        ("from openenv.providers import LaunchSpec\nLaunchSpec(imagge='x')", "imagge"),
        ("from openenv import EnvClient\nEnvClient('x', keyy=1)", "unexpected keyword argument 'keyy'"),
    ],
)
def test_a_stale_name_is_found_without_running_it(program: str, says: str) -> None:
    assert says in "\n".join(names.complaints(program))


def test_a_name_that_nothing_defines_is_found() -> None:
    assert "Undefined name `limits`" in names.undefined("print(limits)")
    assert names.undefined("limits = 1\nprint(limits)") == ""


def test_a_block_that_is_not_closed_is_seen() -> None:
    open_ended = Page("page.md", "```python\nprint(1)\n")
    assert open_ended.fences == 1
    assert open_ended.blocks == []
