"""Prints the table of `docs/validate.md`: all checks of `openenv validate`."""

from openenv.project.checks import Level
from openenv.project.checks.examination import CODE_PROBES, FILE_PROBES, level_of
from openenv.project.checks.url import PROBES

HEAD = "| check | asks | needs |\n|---|---|---|"
WORDS = {
    Level.STATIC: "Level static: files and imports",
    Level.RUNTIME: "Level runtime: episodes",
    Level.LOAD: "Level load: many sessions and episodes",
    Level.URL: "With `--url`: a server that runs",
}


def page() -> str:
    probes = [*FILE_PROBES, *CODE_PROBES, *PROBES]
    parts = []
    for level, words in WORDS.items():
        rows = [
            f"| `{probe.id}` | {probe.asks} | {', '.join(f'`{need}`' for need in probe.needs)} |"
            for probe in probes
            if level_of(probe) is level
        ]
        parts.append("\n".join([f"### {words}\n", HEAD, *rows]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page())
