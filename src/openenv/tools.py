"""Helpers for code inside environments: Git repositories of a Gitea server, and a Python interpreter."""

from __future__ import annotations

import base64
import importlib
import json
import shlex
import shutil
import subprocess
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ._http import fetch
from .errors import ConnectionFailed, MissingExtra, NotReady, ProviderFailed, UsageError
from .settings import environ_of_environments
from .types import CodeExecResult

__all__ = ["GitServerClient", "PyExecutor", "RepoInfo"]


_PAUSE_S = 0.2
_REQUEST_S = 10.0
# Repositories on a page of the server's answer.
_PAGE = 50
# Where Gitea listens if its URL names no port.
GITEA_PORT = 3000


@dataclass
class RepoInfo:
    """One repository of a server. `commit` is a branch, a tag or a hash."""

    name: str
    url: str
    commit: str
    clone_url: str


class GitServerClient:
    """Clones repositories of one user of a Gitea server, and resets them for an episode.

    Needs the program `git`. The password is neither on a command line nor in a working copy.

    Args:
        gitea_url: `http(s)://host:port` of the server.
        username: The owner of the repositories.
        password: Their password, or a token.
        workspace_dir: Folder of the working copies; made by the first clone.
        timeout_s: Seconds that one git command may take.

    Attributes:
        is_ready: Whether the server has answered; a call that needs it asks once if not.
    """

    def __init__(
        self,
        gitea_url: str,
        username: str,
        password: str,
        workspace_dir: str | Path = "/workspace",
        *,
        timeout_s: float = 300.0,
    ):
        parts = urlsplit(gitea_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"gitea_url is {gitea_url!r}: it must be http(s)://host:port")
        self.gitea_url = gitea_url.rstrip("/")
        self.username = username
        self.password = password
        self.workspace_dir = Path(workspace_dir)
        self.is_ready = False
        self.domain = parts.hostname
        self.port = parts.port or GITEA_PORT
        self._timeout_s = timeout_s
        self._authorization = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    def wait_for_ready(self, timeout: float = 30) -> bool:
        """Waits until the server answers, for at most `timeout` s. Returns whether it did."""
        limit = time.monotonic() + timeout
        while not self._answers(min(_REQUEST_S, max(limit - time.monotonic(), _PAUSE_S))):
            if time.monotonic() + _PAUSE_S > limit:
                return False
            time.sleep(_PAUSE_S)
        self.is_ready = True
        return True

    def list_repositories(self) -> list[dict[str, str]]:
        """The user's repositories: `name`, `full_name`, `clone_url` and `description` of each.

        Raises:
            NotReady: The server does not answer.
            ProviderFailed: It refuses the password, or is not Gitea.
        """
        self._require_ready()
        found: list[dict[str, str]] = []
        while True:
            page = self._ask(f"/api/v1/user/repos?page={len(found) // _PAGE + 1}&limit={_PAGE}")
            keys = ("name", "full_name", "clone_url", "description")
            found += [{key: str(entry.get(key) or "") for key in keys} for entry in page]
            if len(page) < _PAGE:
                return found

    def clone_to_workspace(self, repo_name: str, target_dir: str | None = None, commit: str = "main") -> str:
        """Clones a repository, replaces an existing folder, and checks out a commit.

        Args:
            repo_name: `name` of the user's repository, or `owner/name`.
            target_dir: Folder below `workspace_dir`; by default the repository's name.
            commit: Branch, tag or hash.

        Returns:
            The path of the working copy.

        Raises:
            NotReady: The server does not answer.
            UsageError: The folder is not below `workspace_dir`.
            ProviderFailed: There is no such repository or commit; the message is git's own.
        """
        self._require_ready()
        target = self._folder(target_dir or repo_name.rpartition("/")[2])
        if target == self.workspace_dir.resolve():
            raise UsageError(f"{target} is the workspace itself: target_dir must be a folder below it")
        if target.exists():
            shutil.rmtree(target)
        self.workspace_dir.mkdir(parents=True, exist_ok=True)
        owner, _, name = repo_name.rpartition("/")
        url = f"{self.gitea_url}/{quote(owner or self.username)}/{quote(name)}.git"
        self._git("clone", ["clone", "--", url, str(target)], self.workspace_dir)
        self._check_out(target, commit)
        return str(target)

    def reset_workspace(self, repo_name: str, commit: str = "main") -> bool:
        """Resets a working copy to a commit of the server; changes and new files are lost. Returns True.

        Raises:
            ProviderFailed: It was not cloned, the server does not answer, or there is no such commit.
        """
        folder = self._cloned(repo_name)
        self._git("fetch", ["fetch", "--all", "--tags", "--force"], folder)
        self._check_out(folder, commit)
        self._git("clean", ["clean", "-fdx"], folder)
        return True

    def execute_git_command(self, command: str, working_dir: str = "") -> tuple[int, str, str]:
        """Runs a git command, given without the word git: `status --short`.

        Args:
            command: Words as in a shell; no shell runs them.
            working_dir: Folder below `workspace_dir`.

        Returns:
            Exit code, standard output and standard error. A missing folder or an unclosed quotation is exit code 1.
        """
        folder = self._folder(working_dir)
        if not folder.is_dir():
            return 1, "", f"there is no folder {folder}: clone_to_workspace makes one"
        try:
            words = shlex.split(command)
        except ValueError as error:
            return 1, "", f"{error} in {command!r}"
        done = self._run(words[1:] if words[:1] == ["git"] else words, folder)
        return done.returncode, done.stdout, done.stderr

    def get_current_commit(self, repo_name: str) -> str:
        """The commit hash of a working copy.

        Raises:
            ProviderFailed: It was not cloned.
        """
        return self._git("rev-parse", ["rev-parse", "HEAD"], self._cloned(repo_name)).strip()

    def workspace_exists(self, repo_name: str) -> bool:
        """Whether a repository was cloned."""
        return (self._folder(repo_name) / ".git").is_dir()

    def _check_out(self, folder: Path, commit: str) -> None:
        if commit.startswith("-"):
            raise UsageError(f"{commit!r} is not a branch, tag or hash")
        here = f"refs/remotes/origin/{commit}"
        known = self._run(["rev-parse", "--verify", "--quiet", here], folder).returncode == 0
        # A branch is set to the server's, also if it was moved here.
        words = ["checkout", "--force", "-B", commit, here] if known else ["checkout", "--force", "--detach", commit]
        self._git("checkout", words, folder)

    def _cloned(self, repo_name: str) -> Path:
        folder = self._folder(repo_name)
        if not (folder / ".git").is_dir():
            raise ProviderFailed(f"there is no repository in {folder}: call clone_to_workspace({repo_name!r}) first")
        return folder

    def _folder(self, name: str) -> Path:
        root = self.workspace_dir.resolve()
        folder = (root / name).resolve()
        if not folder.is_relative_to(root):
            raise UsageError(f"{name!r} is outside of the workspace {root}: name a folder below it")
        return folder

    def _git(self, what: str, words: list[str], folder: Path) -> str:
        done = self._run(words, folder)
        if done.returncode:
            raise ProviderFailed(f"git {what} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _run(self, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        # In environment variables: every user of the machine can read a command line.
        own = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self.gitea_url}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: {self._authorization}",
            "GIT_TERMINAL_PROMPT": "0",
            # Without it, git would use a repository that contains the workspace.
            "GIT_CEILING_DIRECTORIES": str(self.workspace_dir.resolve().parent),
        }
        try:
            return subprocess.run(  # noqa: S603 - git, with the words that its caller wants
                ["git", *words],  # noqa: S607 - wherever it is installed
                cwd=folder,
                env={**environ_of_environments(), **own},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except FileNotFoundError:
            raise ProviderFailed("the program git is not installed: install it to work on repositories") from None
        except subprocess.TimeoutExpired:
            raise ProviderFailed(f"git {words[0]} took longer than {self._timeout_s:g} s (timeout_s)") from None

    def _require_ready(self) -> None:
        self.is_ready = self.is_ready or self._answers(_REQUEST_S)
        if not self.is_ready:
            raise NotReady(f"the server {self.gitea_url} is not ready: call wait_for_ready(), or check the URL")

    def _answers(self, timeout_s: float) -> bool:
        try:
            return fetch(self.gitea_url + "/", {}, timeout_s).status < 500
        except ConnectionFailed:
            return False

    def _ask(self, path: str) -> list[dict[str, Any]]:
        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        try:
            reply = fetch(self.gitea_url + path, headers, _REQUEST_S)
            if reply.status >= 300:
                advice = ": check username and password" if reply.status in {401, 403} else ""
                raise ProviderFailed(f"{self.gitea_url} answers {reply.status} to {path}{advice}")
            answer = reply.json()
        except (ConnectionFailed, ValueError) as error:
            raise ProviderFailed(f"{self.gitea_url} does not list its repositories: {error}") from error
        if not isinstance(answer, list):
            raise ProviderFailed(f"{self.gitea_url} does not list its repositories: is it a Gitea server?")
        return answer


class PyExecutor:
    """Runs code in one `smolagents.LocalPythonExecutor`; variables stay from one run to the next.

    The interpreter refuses imports that are not allowed, but it runs in this process and is not a sandbox: for
    untrusted code, give each session its own process and sandbox (`execution = "process"`).

    Code may call `format_exc()` and `safe_json_dumps(value)`.

    Args:
        additional_imports: Modules that code may import, in addition to those that smolagents allows.

    Raises:
        MissingExtra: smolagents is not installed.
    """

    def __init__(self, additional_imports: list[str] | None = None):
        try:
            smolagents = importlib.import_module("smolagents")
        except ModuleNotFoundError:
            raise MissingExtra("smolagents", None) from None
        self._executor = smolagents.LocalPythonExecutor(additional_authorized_imports=list(additional_imports or ()))
        self._executor.send_tools(
            {"format_exc": traceback.format_exc, "safe_json_dumps": lambda value: json.dumps(value, default=repr)}
        )

    def run(self, code: str) -> CodeExecResult:
        """Runs code to its end.

        Returns:
            `stdout` is what the code printed, then the value of its last expression as JSON, or its `repr` if
            it is not JSON. If the code raises, `exit_code` is 1 and `stderr` is the traceback; this is not an error.
        """
        try:
            outcome = self._executor(code)
        except Exception:  # noqa: BLE001 - the code may raise anything
            return CodeExecResult(stdout="", stderr=traceback.format_exc(), exit_code=1)
        said = [] if not outcome.logs else [str(outcome.logs)]
        if outcome.output is not None:
            try:
                said.append(json.dumps(outcome.output))
            except (TypeError, ValueError, RecursionError):
                said.append(repr(outcome.output))
        return CodeExecResult(stdout="\n".join(said), stderr="", exit_code=0)
