"""Print `docs/settings.md`: `python scripts/settings_table.py > docs/settings.md`."""

from collections.abc import Iterable

from openenv.settings import CaptureSettings, ClientSettings, ModelSettings, ServerSettings, Setting

HEAD = """# Settings

A server reads these when it starts. Most are options of `openenv serve` too (`openenv serve --help`), and an
option wins over its variable. This page is printed by `scripts/settings_table.py`; a test keeps it true.

| setting | environment variable | default | what it does |
|---|---|---|---|"""


CLIENT_HEAD = """
A client reads these when it is created; an argument of `EnvClient` wins over its variable.

| setting | environment variable | default | what it does |
|---|---|---|---|"""


MODEL_HEAD = """
`openenv rollout`, `eval --model` and `collect` read these. Keys are never in records, results or messages.

| setting | environment variable | default | what it does |
|---|---|---|---|"""


CAPTURE_HEAD = """
`openenv capture` reads these. No record has a key.

| setting | environment variable | default | what it does |
|---|---|---|---|"""


# docs/existing-code.md explains these.
OLDER_NAMES = {"max_concurrent_envs"}


def rows(settings: Iterable[Setting]) -> list[str]:
    return [
        f"| `{setting.name}` | `{setting.variable}` "
        f"| {'' if setting.default is None else f'`{setting.default}`'} | {setting.description} |"
        for setting in settings
        if setting.name not in OLDER_NAMES
    ]


def page() -> str:
    kinds = (ServerSettings, ClientSettings, ModelSettings, CaptureSettings)
    server, client, model, capture = (rows(each.table()) for each in kinds)
    return "\n".join([HEAD, *server, CLIENT_HEAD, *client, MODEL_HEAD, *model, CAPTURE_HEAD, *capture])


if __name__ == "__main__":
    print(page())
