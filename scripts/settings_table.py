"""Prints `docs/settings.md`: `python scripts/settings_table.py > docs/settings.md`."""

from openenv.settings import ServerSettings

HEAD = """# Settings

A server reads these when it starts. Most are options of `openenv serve` too (`openenv serve --help`), and an
option wins over its variable. This page is printed by `scripts/settings_table.py`; a test keeps it true.

| setting | environment variable | default | what it does |
|---|---|---|---|"""


def page() -> str:
    rows = [
        f"| `{setting.name}` | {', '.join(f'`{name}`' for name in setting.variables)} "
        f"| {'' if setting.default is None else f'`{setting.default}`'} | {setting.description} |"
        for setting in ServerSettings.table()
    ]
    return "\n".join([HEAD, *rows])


if __name__ == "__main__":
    print(page())
