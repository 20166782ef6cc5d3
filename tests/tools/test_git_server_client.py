from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openenv.errors import NotReady, ProviderFailed, UsageError
from openenv.tools import GitServerClient

USER, PASSWORD = "ann", "s3cret: with colon"
EXPECTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Gitea(SimpleHTTPRequestHandler):
    """Serves bare repositories as files, as git reads them from any web server, and Gitea's list of them."""

    repositories: list[dict[str, Any]] = []
    asked: list[tuple[str, str | None]] = []
    delay_s = 0.0

    def do_GET(self) -> None:
        time.sleep(self.delay_s)
        key = self.headers.get("Authorization")
        self.asked.append((self.path, key))
        if self.path == "/":
            self._answer(200, b"welcome")
        elif key != EXPECTED:
            self._answer(401, b"who are you?")
        elif self.path.startswith("/api/v1/user/repos?page="):
            page = int(self.path.partition("page=")[2].partition("&")[0])
            found: Any = self.repositories
            found = found[(page - 1) * 50 : page * 50] if isinstance(found, list) else found
            self._answer(200, json.dumps(found).encode())
        else:
            super().do_GET()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None: ...


def git(*words: str, folder: Path) -> None:
    identity = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, env={**os.environ, **identity})


def commit(folder: Path, text: str) -> None:
    (folder / "code.py").write_text(text)
    git("add", ".", folder=folder)
    git("commit", "-qm", text, folder=folder)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits on main, the first tagged v1, and one more on the branch feature/x; bare under `served/`."""
    root = tmp_path_factory.mktemp("gitea")
    work, bare = root / "work", root / "served" / USER / "demo.git"
    work.mkdir()
    bare.parent.mkdir(parents=True)
    git("init", "-q", "-b", "main", folder=work)
    commit(work, "one")
    git("tag", "v1", folder=work)
    commit(work, "two")
    git("checkout", "-qb", "feature/x", folder=work)
    commit(work, "three")
    git("checkout", "-q", "main", folder=work)
    git("clone", "-q", "--bare", str(work), str(bare), folder=root)
    git("update-server-info", folder=bare)
    return root / "served"


@pytest.fixture
def gitea(source: Path) -> Iterator[str]:
    Gitea.asked, Gitea.repositories = [], [{"name": "demo", "full_name": "ann/demo", "clone_url": "c", "size": 3}]
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Gitea, directory=str(source)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(gitea: str, tmp_path: Path) -> GitServerClient:
    return GitServerClient(gitea, USER, PASSWORD, str(tmp_path / "workspace"))


def test_a_repository_is_cloned_at_a_commit(client):
    folder = Path(client.clone_to_workspace("demo"))
    assert folder == client.workspace_dir / "demo"
    assert (folder / "code.py").read_text() == "two"
    assert client.workspace_exists("demo")
    other = Path(client.clone_to_workspace("demo", "older", "v1"))
    assert (other / "code.py").read_text() == "one"
    named = Path(client.clone_to_workspace("ann/demo", "branch", "feature/x"))
    assert (named / "code.py").read_text() == "three"


def test_a_slow_server_is_ready(client, monkeypatch):
    monkeypatch.setattr(Gitea, "delay_s", 0.5)
    assert [each["name"] for each in client.list_repositories()] == ["demo"]


def test_cloning_again_replaces_what_lies_there(client):
    folder = Path(client.clone_to_workspace("demo"))
    (folder / "left").write_text("over")
    client.clone_to_workspace("demo")
    assert not (folder / "left").exists()


def test_a_reset_loses_changes_and_new_files(client):
    folder = Path(client.clone_to_workspace("demo"))
    first = client.get_current_commit("demo")
    (folder / "code.py").write_text("mine")
    (folder / "new").write_text("mine")
    (folder / ".git" / "info" / "exclude").write_text("ignored\n")
    (folder / "ignored").write_text("mine")
    assert client.reset_workspace("demo") is True
    assert sorted(path.name for path in folder.iterdir()) == [".git", "code.py"]
    assert (folder / "code.py").read_text() == "two"
    assert client.reset_workspace("demo", "v1") is True
    assert (folder / "code.py").read_text() == "one"
    assert client.get_current_commit("demo") != first
    client.reset_workspace("demo")
    assert client.get_current_commit("demo") == first


def test_a_branch_that_was_committed_to_is_put_back(client):
    folder = Path(client.clone_to_workspace("demo"))
    first = client.get_current_commit("demo")
    commit(folder, "mine")
    client.reset_workspace("demo")
    assert client.get_current_commit("demo") == first


def test_git_commands_run_in_the_working_copy(client):
    client.clone_to_workspace("demo")
    assert client.execute_git_command("status --short", "demo") == (0, "", "")
    code, out, _ = client.execute_git_command("git log --format=%s -1", "demo")
    assert (code, out) == (0, "two\n")
    code, _, err = client.execute_git_command("no-such-command", "demo")
    assert code != 0
    assert "no-such-command" in err
    assert client.execute_git_command("status", "elsewhere")[0] == 1


def test_the_repositories_are_listed(client):
    assert client.list_repositories() == [
        {"name": "demo", "full_name": "ann/demo", "clone_url": "c", "description": ""}
    ]
    Gitea.repositories = [{"name": f"r{number}"} for number in range(120)]
    assert [entry["name"] for entry in client.list_repositories()] == [f"r{number}" for number in range(120)]


def test_the_password_is_nowhere_but_in_requests(client):
    folder = Path(client.clone_to_workspace("demo"))
    assert Gitea.asked[0] == ("/", None)
    assert {key for path, key in Gitea.asked[1:]} == {EXPECTED}
    for path in folder.rglob("*"):
        if path.is_file():
            assert EXPECTED.encode() not in path.read_bytes()
            assert PASSWORD.encode() not in path.read_bytes()


def test_a_wrong_password_is_refused_with_advice(gitea, tmp_path):
    client = GitServerClient(gitea, USER, "wrong", tmp_path)
    with pytest.raises(ProviderFailed, match="401.*check username and password"):
        client.list_repositories()
    with pytest.raises(RuntimeError, match="git clone failed"):
        client.clone_to_workspace("demo")


def test_what_is_not_there_is_said(client):
    with pytest.raises(ProviderFailed, match="(?s)git clone failed.*not found"):
        client.clone_to_workspace("nothing")
    client.clone_to_workspace("demo")
    with pytest.raises(ProviderFailed, match="(?s)git checkout failed.*v9"):
        client.reset_workspace("demo", "v9")
    with pytest.raises(ProviderFailed, match=r"clone_to_workspace\('other'\)"):
        client.get_current_commit("other")
    with pytest.raises(ProviderFailed, match="first"):
        client.reset_workspace("other")
    assert not client.workspace_exists("other")


@pytest.mark.parametrize("folder", ["../out", "/etc", "a/../../out"])
def test_nothing_outside_of_the_workspace_is_touched(client, folder):
    with pytest.raises(UsageError, match="is outside of the workspace"):
        client.clone_to_workspace("demo", folder)
    with pytest.raises(UsageError, match="is outside of the workspace"):
        client.execute_git_command("status", folder)


@pytest.mark.parametrize(("repository", "folder"), [("demo", "."), ("ann/", None), ("demo", "a/..")])
def test_the_workspace_itself_is_no_working_copy(client, repository, folder):
    kept = Path(client.clone_to_workspace("demo", "kept"))
    with pytest.raises(UsageError, match="is the workspace itself"):
        client.clone_to_workspace(repository, folder)
    assert kept.is_dir()


def test_a_repository_around_the_workspace_is_left_alone(client):
    around = client.workspace_dir.parent
    subprocess.run(["git", "init", "--quiet", str(around)], check=True)
    (client.workspace_dir / "notes").mkdir(parents=True)
    (around / "mine").write_text("not committed")
    for name in ("notes", ""):
        with pytest.raises(ProviderFailed, match="first"):
            client.reset_workspace(name)
        code, _, told = client.execute_git_command("clean -fdx", name)
        assert (code != 0, "not a git repository" in told) == (True, True)
    assert (around / "mine").exists()


def test_a_command_that_is_no_list_of_words_is_answered_as_by_git(client):
    client.clone_to_workspace("demo")
    code, _, told = client.execute_git_command("commit -m 'open", "demo")
    assert (code, "quotation" in told) == (1, True)


def test_a_commit_is_no_option(client):
    with pytest.raises(UsageError, match="not a branch"):
        client.clone_to_workspace("demo", commit="--help")


def test_a_server_that_is_not_there(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Gitea) as unused:
        port = unused.server_port
    client = GitServerClient(f"http://127.0.0.1:{port}", USER, PASSWORD, tmp_path)
    assert client.wait_for_ready(0) is False
    with pytest.raises(NotReady, match="not ready"):
        client.clone_to_workspace("demo")
    with pytest.raises(RuntimeError, match="not ready"):
        client.list_repositories()


def test_a_server_that_is_there_is_ready(client):
    assert not client.is_ready
    assert client.wait_for_ready(timeout=20) is True
    assert client.is_ready


@pytest.mark.parametrize("url", ["localhost:3000", "file:///etc", "ftp://host", ""])
def test_a_url_that_is_none(url):
    with pytest.raises(UsageError, match="http"):
        GitServerClient(url, USER, PASSWORD)


def test_an_answer_that_is_no_list(client):
    Gitea.repositories = {"message": "hello"}
    with pytest.raises(ProviderFailed, match="does not list its repositories"):
        client.list_repositories()


def test_a_machine_without_git(client, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProviderFailed, match="git is not installed"):
        client.clone_to_workspace("demo")


def test_a_command_that_takes_too_long(gitea, tmp_path):
    client = GitServerClient(gitea, USER, PASSWORD, tmp_path, timeout_s=0)
    with pytest.raises(ProviderFailed, match="git clone took longer than 0 s"):
        client.clone_to_workspace("demo")


def test_an_answer_that_cannot_be_read(gitea, tmp_path):
    client = GitServerClient(f"{gitea}/welcome", USER, PASSWORD, tmp_path)
    assert client.wait_for_ready(20)
    with pytest.raises(ProviderFailed, match="answers 404"):
        client.list_repositories()
