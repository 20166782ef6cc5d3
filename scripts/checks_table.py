"""Print the table of `docs/validate.md`: all checks of `openenv validate`."""

from openenv.project.checks import Level
from openenv.project.checks.examination import CODE_CHECKS, FILE_CHECKS
from openenv.project.checks.findings import level_of
from openenv.project.checks.url import CHECKS

HEAD = "| check | asks | needs |\n|---|---|---|"
WORDS = {
    Level.STATIC: "Level static: files and imports",
    Level.RUNTIME: "Level runtime: episodes",
    Level.LOAD: "Level load: many sessions and episodes",
    Level.SEMANTIC: "Level semantic: honest scores",
    Level.URL: "With `--url`: a server that runs",
}


def page() -> str:
    checks = [*FILE_CHECKS, *CODE_CHECKS, *CHECKS]
    parts = []
    for level, words in WORDS.items():
        rows = [
            f"| `{check.id}` | {check.asks} | {', '.join(f'`{need}`' for need in check.needs)} |"
            for check in checks
            if level_of(check) is level
        ]
        parts.append("\n".join([f"### {words}\n", HEAD, *rows]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page())
