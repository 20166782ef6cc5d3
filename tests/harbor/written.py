"""Folders of tasks that tests write."""

from __future__ import annotations

from pathlib import Path

SOLVE = "#!/bin/sh\necho done > result.txt\n"
TEST = "#!/bin/sh\nif [ -f /app/result.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def write_files(folder: Path, files: dict[str, str | None]) -> Path:
    """Writes files into a folder; None leaves one out."""
    for name, text in files.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder


def write_task(folder: Path, **files: str | None) -> Path:
    """A sound task whose agent must write /app/result.txt.

    Args:
        folder: Its folder.
        files: What replaces one of its files, under the names below; None leaves it out.
    """
    named = {
        "toml": ("task.toml", 'version = "1.0"\n[agent]\ntimeout_sec = 30\n[verifier]\ntimeout_sec = 30\n'),
        "instruction": ("instruction.md", "Write /app/result.txt.\n"),
        "dockerfile": ("environment/Dockerfile", "FROM debian:12-slim\nWORKDIR /app\n"),
        "test": ("tests/test.sh", TEST),
        "solve": ("solution/solve.sh", SOLVE),
    }
    return write_files(folder, {path: files.get(name, text) for name, (path, text) in named.items()})


def write_terminal_bench_task(folder: Path, **files: str | None) -> Path:
    """The same task in the format of Terminal-Bench."""
    compose = (
        "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n    command: [sh, -c, sleep infinity]\n"
    )
    named = {
        "yaml": (
            "task.yaml",
            "instruction: |\n  Write /app/result.txt.\ndifficulty: easy\nmax_agent_timeout_sec: 30\n",
        ),
        "compose": ("docker-compose.yaml", compose),
        "dockerfile": ("Dockerfile", "FROM debian:12-slim\nWORKDIR /app\n"),
        "run": ("run-tests.sh", "#!/bin/sh\nsh $TEST_DIR/test_result.sh\n"),
        "test": ("tests/test_result.sh", "test -f /app/result.txt\n"),
        "solve": ("solution.sh", SOLVE),
    }
    return write_files(folder, {path: files.get(name, text) for name, (path, text) in named.items()})
