"""What of a project goes to a Space, and what is changed on the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from openenv.errors import UsageError
from openenv.project import Project
from openenv.project.hub import SpaceRequest, Stage, push

from .conftest import AT_ONCE, DOCKERFILE
from .server import Hub


def text_of(stage: Stage, name: str) -> str:
    source = stage.files[name]
    return source.decode() if isinstance(source, bytes) else source.read_text()


def write(project: Project, *names: str, text: str = "x") -> None:
    for name in names:
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def staged(project: Project, **request: object) -> Stage:
    return Stage.of(Project.find(project.folder), SpaceRequest(**request))


ENDS = ["ENV ENABLE_WEB_INTERFACE=true", "ENV OPENENV_API_KEYS=none"]
PLAIN = {
    "Dockerfile",
    "README.md",
    "__init__.py",
    "models.py",
    "openenv.yaml",
    "pyproject.toml",
    "server/__init__.py",
    "server/app.py",
    "server/guess_environment.py",
}


def test_the_files_of_the_project_go_and_it_stays_as_it_is(project: Project) -> None:
    before = {path: path.read_bytes() for path in project.folder.rglob("*") if path.is_file()}
    assert staged(project).files.keys() == PLAIN
    assert {path: path.read_bytes() for path in project.folder.rglob("*") if path.is_file()} == before


def test_keys_caches_and_what_git_has_never_go(project: Project) -> None:
    write(
        project,
        *(
            ".env",
            ".env.local",
            "server/.env",
            "id_ed25519",
            "tls/server.key",
            "cert.pem",
            ".netrc",
            ".aws/credentials",
        ),
        *(
            ".git/config",
            "__pycache__/a.pyc",
            "server/__pycache__/b.pyc",
            ".pytest_cache/x",
            ".cache/y",
            "node_modules/z",
        ),
        *("openenv_guess.egg-info/PKG-INFO", "my-venv/pyvenv.cfg", "my-venv/bin/python", ".DS_Store"),
    )
    # No ignore file brings them back.
    write(project, ".gitignore", ".dockerignore", text="!.env\n!*.pem\n!.git\n")
    write(project, ".env.example")
    stage = staged(project)
    assert stage.files.keys() == PLAIN | {".gitignore", ".dockerignore", ".env.example"}
    told = [note for note in stage.notes if note.startswith("not published: ")]
    assert "not published: .env: may contain keys" in told
    assert len(told) == 8


def test_ignore_files_are_heeded_but_for_what_a_space_needs(project: Project) -> None:
    write(
        project,
        "notes.md",
        "data/big.csv",
        "server/local.txt",
        "server/deep/local.txt",
        "logs/a.log",
        "logs/keep.log",
    )
    write(project, ".dockerignore", text="*.md\nDockerfile\nserver/Dockerfile\ndata\n")
    write(project, ".gitignore", text="logs/*\n!logs/keep.log\n")
    write(project, "server/.gitignore", text="local.txt\n")
    assert staged(project).files.keys() == PLAIN | {
        ".gitignore",
        ".dockerignore",
        "server/.gitignore",
        "logs/keep.log",
    }


def test_a_file_of_globs_leaves_out_more(project: Project, tmp_path: Path) -> None:
    write(project, "tests/test_a.py", "data/a.csv", "data/deep/b.csv", "c.json", "deep/d.json", "keep.txt")
    exclude = tmp_path / "exclude"
    exclude.write_text("# what others need not\ntests/\ndata/*.csv\n*.json\nopenenv.yaml\n")
    assert staged(project, exclude=exclude).files.keys() == PLAIN | {"keep.txt"}
    with pytest.raises(UsageError, match=r"--exclude .*nothing: the file does not exist"):
        staged(project, exclude=tmp_path / "nothing")


def test_modes_are_nothing_that_the_hub_keeps(project: Project) -> None:
    write(project, "entry.sh", "models.py")
    (project.folder / "entry.sh").chmod(0o755)
    assert staged(project).notes == [
        "executable here, but not in the Space, since the Hub does not store modes: entry.sh"
    ]


def test_links_that_lead_out_stay_here(project: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("of somebody")
    (project.folder / "out.txt").symlink_to(tmp_path / "outside")
    (project.folder / "nowhere.txt").symlink_to("gone")
    (project.folder / "folder").symlink_to(tmp_path)
    (project.folder / "in.txt").symlink_to("models.py")
    os.mkfifo(project.folder / "pipe")
    stage = staged(project)
    assert stage.files.keys() == PLAIN | {"in.txt"}
    assert len([note for note in stage.notes if "link" in note]) == 3


def test_links_to_what_stays_here_stay_here_and_so_do_those_to_themselves(project: Project) -> None:
    write(project, ".env", ".git/config", "data/big.csv", "notes.md")
    write(project, ".gitignore", text="data/\n")
    for name, target in {
        "settings.txt": ".env",
        "config.txt": ".git/config",
        "big.csv": "data/big.csv",
        "loop.txt": "loop.txt",
        "copy.md": "README.md",
    }.items():
        (project.folder / name).symlink_to(target)
    stage = staged(project)
    assert stage.files.keys() == PLAIN | {".gitignore", "notes.md", "copy.md"}
    assert "not published: settings.txt: a link to .env, which is not published" in stage.notes
    assert len([note for note in stage.notes if "link" in note]) == 4


@pytest.mark.parametrize(
    "name",
    [
        "prod.env",
        ".ENV",
        "Server.PEM",
        "credentials.json",
        "service-account-1.json",
        ".pgpass",
        ".streamlit/secrets.toml",
    ],
)
def test_what_may_hold_keys_has_many_names(project: Project, name: str) -> None:
    write(project, name)
    stage = staged(project)
    assert stage.files.keys() == PLAIN
    assert stage.notes == [f"not published: {name}: may contain keys"]


def test_ignore_files_of_the_repository_that_it_is_in_are_heeded(project: Project, tmp_path: Path) -> None:
    write(project, "local/a.txt", "b.secret", "c.txt")
    (tmp_path / ".gitignore").write_text(f"/{project.folder.name}/local/\n*.secret\n*.md\n")
    assert staged(project).files.keys() == PLAIN | {"local/a.txt", "b.secret", "c.txt"}  # of no repository
    (tmp_path / ".git").mkdir()
    assert staged(project).files.keys() == PLAIN | {"c.txt"}
    # Who pushes what is left out as a whole means it.
    (tmp_path / ".gitignore").write_text(f"{project.folder.name}/\n")
    assert staged(project).files.keys() == PLAIN | {"local/a.txt", "b.secret", "c.txt"}


def test_a_secret_is_found_in_files_of_any_size(project: Project) -> None:
    write(project, "empty.txt", text="")
    write(project, "large.log", text="x" * 6_000_000 + "the-secret-itself")
    stage = staged(project)
    stage.check_no_secrets(["another-secret"])
    with pytest.raises(UsageError, match=r"large.log contains your token or the value of a --secret"):
        stage.check_no_secrets(["the-secret-itself"])
    (project.folder / "large.log").unlink()
    with pytest.raises(UsageError, match=r"large.log cannot be read: .*make it readable, or exclude it"):
        stage.check_no_secrets(["another-secret"])


# The Dockerfile.


def test_the_dockerfile_is_in_the_root_and_copies_from_there(project: Project) -> None:
    write(project, "server/requirements.txt", "server/entry.sh", "both.txt", "server/both.txt")
    lines = [
        "FROM a AS one",
        "COPY requirements.txt requirements.txt",
        'ADD ["entry.sh", "both.txt", "/x/"]',
        "COPY --chown=1000 server/app.py \\",
        "    ./entry.sh /app/",
        "COPY --from=one /a /b",
        "ADD https://x.example/y /y",
        "COPY *.txt /t/",
        "COPY gone.txt /",
    ]
    write(project, "server/Dockerfile", text="\n".join(lines))
    stage = staged(project)
    lines[1] = "COPY server/requirements.txt requirements.txt"
    lines[2] = 'ADD ["server/entry.sh", "both.txt", "/x/"]'
    lines[4] = "    server/entry.sh /app/"
    assert text_of(stage, "Dockerfile").splitlines() == [*lines, *ENDS]
    assert "server/Dockerfile" not in stage.files
    assert [note for note in stage.notes if "gone.txt is not among the files of the Space" in note]


def test_a_dockerfile_in_the_root_is_there_already(project: Project) -> None:
    shutil.move(project.folder / "server" / "Dockerfile", project.folder / "Dockerfile")
    assert text_of(staged(project), "Dockerfile") == f"{DOCKERFILE}{ENDS[0]}\n{ENDS[1]}\n"


def test_another_base_and_no_web_ui(project: Project) -> None:
    stage = staged(project, base_image="python:3.13", interface=False)
    assert text_of(stage, "Dockerfile").splitlines()[0] == "FROM python:3.13"
    assert text_of(stage, "Dockerfile").splitlines()[-2:] == ["ENV ENABLE_WEB_INTERFACE=false", ENDS[1]]
    assert "base_path" not in text_of(stage, "README.md")


def test_what_the_dockerfile_says_of_keys_stays(project: Project) -> None:
    write(project, "server/Dockerfile", text="FROM a\nENV OPENENV_API_KEYS=control:mine ENABLE_WEB_INTERFACE=true\n")
    assert text_of(staged(project), "Dockerfile").count("\nENV ") == 1
    write(project, "server/Dockerfile", text="FROM a\nENV OPENENV_API_KEYS=x\nFROM b\n")
    assert text_of(staged(project), "Dockerfile").splitlines()[-2:] == ENDS


def test_a_project_without_a_dockerfile_says_what_to_do(project: Project) -> None:
    (project.folder / "server" / "Dockerfile").unlink()
    with pytest.raises(UsageError, match=r"has no Dockerfile, which a Space needs: write server/Dockerfile"):
        staged(project)


# The README.


def front(stage: Stage) -> dict:
    return yaml.safe_load(text_of(stage, "README.md").split("---")[1])


def test_the_readme_says_what_the_hub_needs(project: Project) -> None:
    write(project, "openenv.yaml", text="name: word_hunt\nport: 9000\n")
    assert front(staged(project)) == {
        "title": "Word hunt",
        "sdk": "docker",
        "app_port": 9000,
        "base_path": "/web",
        "tags": ["openenv"],
    }


def test_what_the_readme_says_itself_wins(project: Project) -> None:
    write(project, "README.md", text="---\ntitle: Mine\napp_port: 7860\nbase_path: /\ntags: [game]\n---\n# Mine\n")
    stage = staged(project)
    assert front(stage) == {"title": "Mine", "sdk": "docker", "app_port": 7860, "base_path": "/", "tags": ["game"]}
    assert text_of(stage, "README.md").endswith("---\n# Mine\n")


def test_a_readme_of_another_sdk_or_none(project: Project) -> None:
    write(project, "README.md", text="---\nsdk: gradio\n---\n")
    with pytest.raises(UsageError, match=r"README.md has `sdk: gradio`, but the Space of an environment needs"):
        staged(project)
    (project.folder / "README.md").unlink()
    assert text_of(staged(project), "README.md").endswith("# guess\n\n\n")


# The openenv that is not from an index.

WITH_WHEELS = (
    "FROM python:3.12-slim\nCOPY pyproject.toml wheels* /wheels/\nRUN pip install --find-links /wheels openenv\n"
)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> str:
    """The wheel of a checkout, which takes seconds to make."""
    name = "openenv-9.9-py3-none-any.whl"

    def made(folder: Path) -> Path:
        (folder / name).write_bytes(b"PK\0")
        return folder / name

    monkeypatch.setattr("openenv.project.hub.publish.own_wheel", made)
    return name


def test_a_wheel_goes_with_it_and_nothing_leaves_it_out(project: Project, wheel: str) -> None:
    write(project, "server/Dockerfile", text=WITH_WHEELS)
    write(project, ".gitignore", ".dockerignore", text="*.whl\nwheels/")
    stage = staged(project)
    assert stage.files[f"wheels/{wheel}"] == b"PK\0"
    assert text_of(stage, ".gitignore").startswith("*.whl\nwheels/\n# openenv push: ")
    assert text_of(stage, ".gitignore").endswith("!/wheels/\n!/wheels/*.whl\n")
    assert text_of(stage, ".dockerignore").endswith("!wheels\n!wheels/*.whl\n")
    assert (project.folder / ".gitignore").read_text() == "*.whl\nwheels/"


def test_a_wheel_of_an_earlier_push_is_replaced_and_one_of_yours_stays(project: Project, wheel: str) -> None:
    write(project, "server/Dockerfile", text=WITH_WHEELS)
    first = staged(project)
    write(project, ".gitignore", text=text_of(first, ".gitignore"))
    write(project, "wheels/openenv-8.0-py3-none-any.whl")
    again = staged(project)
    assert [name for name in again.files if name.startswith("wheels/")] == [f"wheels/{wheel}"]
    assert text_of(again, ".gitignore") == text_of(first, ".gitignore")
    (project.folder / ".gitignore").unlink()
    assert [name for name in staged(project).files if name.startswith("wheels/")] == [
        "wheels/openenv-8.0-py3-none-any.whl"
    ]


def test_a_dockerfile_that_looks_for_no_wheels_gets_none(project: Project, wheel: str) -> None:
    assert staged(project).files.keys() == PLAIN


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub
def test_only_the_wheel_of_the_last_push_is_in_a_space(project: Project, wheel: str, hub: Hub) -> None:
    write(project, "server/Dockerfile", text=WITH_WHEELS)
    space = hub.add(
        "tester/guess", {"openenv.yaml": b"", "wheels/openenv-8.0-py3-none-any.whl": b"", "wheels/a.whl": b""}
    )
    push(Project.find(project.folder), SpaceRequest(), patience=AT_ONCE)
    assert {name for name in space.files if name.startswith("wheels/")} == {f"wheels/{wheel}", "wheels/a.whl"}
