"""The check of the documents' examples by type checkers finds what is wrong with them.

`make check` runs it over all pages.
"""

from __future__ import annotations

import pytest

from .check_types import check, programs_of
from .page import Page

ENVIRONMENT = """\
```python
from openenv import SyncVectorEnvClient
from openenv.envs.echo import EchoAction, EchoEnv

with EchoEnv("localhost:8000").sync() as env:
    reward: float = env.step(EchoAction(message="hi")).reward or 0.0
```

"""


def page(text: str) -> Page:
    return Page("docs/some page.md", text)


@pytest.mark.slow
def test_what_is_wrong_is_found_in_its_line() -> None:
    """Each page is a program of its own; the tools run once for all of them."""
    wrong = {
        "a coroutine's result": 'with EchoEnv("localhost:8000") as client:\n    print(client.reset().observation)',
        "no reward": "print(env.reset().reward + 1)",
        "one name for two clients": "env = SyncVectorEnvClient(EchoEnv)",
        "no annotation": "def policy(observation):\n    return 1",
    }
    good = ENVIRONMENT + "```python\nasync with EchoEnv('localhost:8000') as client:\n    await client.reset()\n```\n"
    blocks = {f"{name}.md": f"{ENVIRONMENT}```python\n{code}\n```\n" for name, code in wrong.items()}
    pages = [page(good), *(Page(name, text) for name, text in blocks.items())]
    found = check(pages)
    assert {complaint.partition(":")[0] for complaint in found} == blocks.keys()
    for place, tool, says in (
        ("a coroutine's result.md:11", "mypy", "has no attribute"),
        ("a coroutine's result.md:11", "pyright", "Cannot access attribute"),
        ("no reward.md:10", "mypy", "Unsupported operand"),
        ("no reward.md:10", "pyright", "not supported"),
        ("one name for two clients.md:10", "mypy", "Incompatible types"),
        ("no annotation.md:10", "mypy", "missing a type annotation"),
    ):
        assert any(complaint.startswith(f"{place}: {tool}: ") and says in complaint for complaint in found), found


def test_a_mistake_that_is_meant_is_left_out() -> None:
    (program,) = programs_of(page("<!-- types: wrong -->\n```python\nx: int = ''\n```\n"))
    assert program.lines == []


def test_files_are_modules_of_their_page_and_replace_those_of_a_project() -> None:
    text = (
        "```sh\nopenenv init my_env\n```\n\n```python\nfrom my_env import MyEnv\n```\n\n"
        '```python title="my_env/models.py"\nSIDES = 2\n```\n\n```python\nfrom my_env.models import SIDES\n```\n'
    )
    main, *files = programs_of(page(text))
    assert main.lines == [
        "from document_pages.docs_some_page_md.my_env import MyEnv",
        "from document_pages.docs_some_page_md_.my_env.models import SIDES",
    ]
    models = {str(file.path): file for file in files if file.path.name == "models.py"}
    assert models["docs_some_page_md_/my_env/models.py"].lines == ["SIDES = 2"]
    assert models["docs_some_page_md/my_env/models.py"].places[0] == ""
