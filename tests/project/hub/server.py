"""A stand-in of the Hub's API for Spaces: real HTTP on loopback, and repositories in memory. Misbehaves on request.

It speaks what huggingface_hub 2.4 sends and reads, and was written from that client: whoami, creating, looking at,
changing and duplicating Spaces, preupload, LFS (without Xet), commits and pull requests, trees and downloads. What it
is told wrong it refuses with a status, as the Hub does; what else the Hub would find wrong, it does not know.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any

import yaml

from openenv.project.hub.files import GIT, Globs

TOKEN = "hf_stand_in_token_of_a_user"
READ_TOKEN = "hf_stand_in_token_that_reads"
USER = "tester"
TEAM = "team"
HARDWARE = {"cpu-basic", "cpu-upgrade", "t4-small", "t4-medium", "brand-new-gpu"}


@dataclass
class Fault:
    """Something that goes wrong with the next requests.

    Attributes:
        path: Pattern of their method and path, as "POST /api/spaces/*/commit/*".
        times: How many of them.
        status: What they are answered; 0 drops the connection instead.
        headers: Of the answer.
        text: What it says.
        after: Whether the request has its effect first.
        reads: Bytes of the request's body after which the connection is dropped.
        held: The request is held until this is set.
    """

    path: str
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    text: str = "as it was asked to"
    after: bool = False
    reads: int | None = None
    held: threading.Event | None = None


@dataclass
class Repo:
    """A Space, or a dataset.

    Attributes:
        trees: The files of each commit.
        lfs: Paths of files that were uploaded by LFS.
        refs: The last commit of each branch and pull request.
    """

    name: str
    sdk: str | None = "docker"
    private: bool = False
    hardware: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, bytes]:
        return self.trees[self.refs["main"]]

    def put(self, files: dict[str, bytes], ref: str = "main", message: str = "") -> str:
        oid = hashlib.sha1(repr((self.name, len(self.trees), sorted(files))).encode()).hexdigest()
        self.trees[oid] = dict(files)
        self.refs[ref] = oid
        self.messages.append(message)
        return oid


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, facts: dict[str, str] | None = None, **headers: str):
        super().__init__(message)
        self.status = status
        self.facts = facts or {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Hub:
    """The stand-in.

    Attributes:
        repos: The Spaces there are, by name.
        faults: What goes wrong next.
        requests: Method and path of every request.
        arrived: Set when a request is held.
        pays: Whether the user may have docker Spaces at all.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.arrived = threading.Event()
        self.pays = True
        self.most = 0
        self.now = 0
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hub", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        for fault in self.faults:
            if fault.held is not None:
                fault.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, request: str) -> int:
        """How many requests there were of a pattern."""
        return len(fnmatch.filter(self.requests, request))

    def add(self, name: str, files: dict[str, bytes] | None = None, **facts: Any) -> Repo:
        """A Space that is there."""
        repo = self.repos[name] = Repo(name, **facts)
        repo.put({".gitattributes": b"", "README.md": b"---\nsdk: docker\n---\n"} | (files or {}))
        return repo

    def fault_for(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fnmatch.fnmatchcase(request, fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A stand-in, until the block is left."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def _serve(self) -> None:
        place = urllib.parse.urlsplit(self.path)
        asked = f"{self.command} {urllib.parse.unquote(place.path)}"
        with self.hub.lock:
            self.hub.requests.append(asked)
            self.hub.now += 1
            self.hub.most = max(self.hub.most, self.hub.now)
        try:
            self._serve_one(asked, place)
        finally:
            with self.hub.lock:
                self.hub.now -= 1

    def _serve_one(self, asked: str, place: urllib.parse.SplitResult) -> None:
        fault = self.hub.fault_for(asked)
        if fault is not None and fault.reads is not None:
            self.rfile.read(fault.reads)
            self._drop()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None and fault.held is not None:
            self.hub.arrived.set()
            fault.held.wait(30)
        if fault is not None and not fault.after:
            self._answer(fault.status, {"error": fault.text}, fault.headers)
            return
        try:
            status, told, headers = 200, *self._do(place, body)
        except Refused as refusal:
            told = {"error": str(refusal), "errors": [{"message": str(refusal)}], **refusal.facts}
            status, headers = refusal.status, refusal.headers
        if fault is not None:
            status, told, headers = fault.status, {"error": fault.text}, fault.headers
        self._answer(status, told, headers)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, told: Any, headers: dict[str, str]) -> None:
        if status == 0:
            self._drop()
            return
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # Who asks, and for what.

    @property
    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _do(self, place: urllib.parse.SplitResult, body: bytes) -> tuple[Any, dict[str, str]]:
        if self._token not in {None, TOKEN, READ_TOKEN}:
            raise Refused(401, "Invalid credentials", X_Error_Message="Invalid credentials in Authorization header")
        parts = [urllib.parse.unquote(part) for part in place.path.strip("/").split("/")]
        query = urllib.parse.parse_qs(place.query)
        answer: tuple[Any, dict[str, str]] | None = None
        match parts, self.command:
            case ["api", *rest], _:
                answer = self._api(rest, query, body), {}
            case [("spaces" | "datasets"), owner, name, "info", "lfs", "objects", "batch"], "POST":
                answer = self._batch(json.loads(body)), {"Content-Type": "application/vnd.git-lfs+json"}
            case ["lfs", oid], "PUT" if hashlib.sha256(body).hexdigest() == oid:
                self.hub.objects[oid] = body
                answer = b"", {}
            case [("spaces" | "datasets"), owner, name, "resolve", revision, *path], ("GET" | "HEAD"):
                answer = self._resolve(self._repo(f"{owner}/{name}"), revision, "/".join(path))
        if answer is None:
            raise Refused(404, f"no such route: {self.command} {place.path}")
        return answer

    def _api(self, parts: list[str], query: dict[str, list[str]], body: bytes) -> Any:
        answer: Any = None
        match parts, self.command:
            case ["whoami-v2"], "GET":
                answer = self._whoami()
            case ["repos", "create"], "POST":
                answer = self._create(json.loads(body))
            case ["spaces"], "GET":
                answer = self._found(query)
            case ["validate-yaml"], "POST":
                answer = _validated(json.loads(body))
            case [("spaces" | "datasets"), owner, name, *rest], "GET":
                answer = self._told(self._repo(f"{owner}/{name}"), rest)
            case [("spaces" | "datasets"), owner, name, *rest], _:
                answer = self._done(self._repo(f"{owner}/{name}"), rest, query, body)
        if answer is None:
            raise Refused(404, f"no such route: {parts}")
        return answer

    def _found(self, query: dict[str, list[str]]) -> Any:
        """The Spaces with all tags of `filter` whose name has the word of `search`."""
        found = []
        for repo in self.hub.repos.values():
            card = _front_matter(repo.files.get("README.md", b"").decode())
            tags = card.get("tags", [])
            named = query.get("search", [""])[0].lower() in repo.name.lower()
            if named and not repo.private and {*query.get("filter", [])} <= {*tags}:
                found.append({"id": repo.name, "tags": tags, "cardData": card})
        return found

    def _whoami(self) -> Any:
        if self._token is None:
            raise Refused(401, "Invalid username or password.")
        role = "read" if self._token == READ_TOKEN else "write"
        orgs = [{"type": "org", "name": TEAM, "roleInOrg": "write"}]
        return {"name": USER, "orgs": orgs, "auth": {"accessToken": {"role": role}}}

    def _repo(self, name: str) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and (self._token is None or not _is_ours(name))):
            status = 401 if self._token is None else 404
            raise Refused(status, "Repository not found", X_Error_Code="RepoNotFound")
        return repo

    def _may_write(self, name: str) -> None:
        if self._token != TOKEN or not _is_ours(name):
            raise Refused(403, f"You don't have the rights to write to {name}")

    def _create(self, given: dict[str, Any]) -> Any:
        known = {"name", "organization", "type", "sdk", "visibility", "hardware", "secrets", "variables"}
        assert given["type"] in {"space", "dataset"}
        assert not given.keys() - known, given
        name = f"{given['organization'] or USER}/{given['name']}"
        self._may_write(name)
        if given["type"] == "space" and not self.hub.pays:
            raise Refused(402, "Docker Spaces on cpu-basic need a PRO subscription")
        if given.get("hardware") not in {None, *HARDWARE}:
            raise Refused(400, "Invalid hardware flavor")
        with self.hub.lock:
            if name in self.hub.repos:
                raise Refused(409, "You already created this repo", facts={"url": self._url(given["type"], name)})
            repo = self.hub.add(name, sdk=given.get("sdk"), private=given.get("visibility") == "private")
        repo.put({".gitattributes": b""})
        _set(repo, given)
        return {"url": self._url(given["type"], name), "name": name}

    def _url(self, kind: str, name: str) -> str:
        return f"{self.hub.url}/{kind}s/{name}"

    def _told(self, repo: Repo, rest: list[str]) -> Any:
        answer: Any = None
        match rest:
            case [] | ["revision", _]:
                answer = _info(repo, _commit(repo, rest[1] if rest else "main"))
            case ["tree", revision]:
                answer = _tree(repo, _commit(repo, revision))
            case ["variables"]:
                self._may_write(repo.name)
                answer = _listed(repo.variables)
            case ["runtime"]:
                answer = {"stage": "RUNNING", "hardware": {"current": repo.hardware, "requested": repo.hardware}}
        if answer is None:
            raise Refused(404, f"no such route: {rest}")
        return answer

    def _done(self, repo: Repo, rest: list[str], query: dict[str, list[str]], body: bytes) -> Any:
        if rest == ["duplicate"]:
            return self._duplicate(repo, json.loads(body))
        self._may_write(repo.name)
        answer: Any = None
        match rest, self.command:
            case ["preupload", revision], "POST":
                answer = self._preupload(repo, revision, json.loads(body))
            case ["commit", revision], "POST":
                answer = self._commit(repo, revision, body, query.get("create_pr") == ["1"])
            case [("variables" | "secrets") as kind], "POST":
                given = json.loads(body)
                getattr(repo, kind)[given["key"]] = given["value"]
                answer = _listed(repo.variables)
            case ["hardware"], "POST":
                repo.hardware = _hardware(json.loads(body)["flavor"])
                answer = {"stage": "BUILDING", "hardware": {"current": None, "requested": repo.hardware}}
            case ["settings"], "PUT":
                repo.private = json.loads(body)["visibility"] == "private"
                answer = {}
        if answer is None:
            raise Refused(404, f"no such route: {self.command} {rest}")
        return answer

    # Files.

    def _preupload(self, repo: Repo, revision: str, given: dict[str, Any]) -> Any:
        there = repo.trees[_commit(repo, revision)]
        ignored = Globs.read(given.get("gitIgnore") or there.get(".gitignore", b"").decode(), GIT)

        def told(file: dict[str, Any]) -> dict[str, Any]:
            path, sample = file["path"], base64.b64decode(file["sample"])
            lfs = b"\0" in sample or file["size"] > 10_000_000
            oid = (_sha256 if lfs else _blob)(there[path]) if path in there else None
            mode = "lfs" if lfs else "regular"
            return {
                "path": path,
                "uploadMode": mode,
                "shouldIgnore": ignored.leaves_out(PurePosixPath(path)),
                "oid": oid,
            }

        return {"files": [told(file) for file in given["files"]]}

    def _batch(self, given: dict[str, Any]) -> Any:
        assert given["operation"] == "upload"
        objects = []
        for each in given["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/lfs/{each['oid']}"}}
            there = each["oid"] in self.hub.objects
            objects.append({**each, **({} if there else {"actions": upload})})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repo: Repo, revision: str, body: bytes, create_pr: bool) -> Any:
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[0]["key"] == "header"
        files = dict(repo.trees[_commit(repo, revision)])
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.hub.objects:
                        raise Refused(400, f"LFS object {value['oid']} was not uploaded")
                    files[value["path"]] = self.hub.objects[value["oid"]]
                    repo.lfs.add(value["path"])
                case "deletedFile":
                    if value["path"] not in files:
                        raise Refused(404, "A file with this name doesn't exist", X_Error_Code="EntryNotFound")
                    del files[value["path"]]
                case other:
                    raise Refused(400, f"unknown operation {other}")
        number = 1 + sum(ref.startswith("refs/pr/") for ref in repo.refs)
        oid = repo.put(files, f"refs/pr/{number}" if create_pr else revision, lines[0]["value"]["summary"])
        if not create_pr:
            repo.sdk = _front_matter(files.get("README.md", b"").decode()).get("sdk", repo.sdk)
        answer = {"commitUrl": f"{self.hub.url}/spaces/{repo.name}/commit/{oid}", "commitOid": oid, "success": True}
        if create_pr:
            answer["pullRequestUrl"] = f"{self.hub.url}/spaces/{repo.name}/discussions/{number}"
        return answer

    def _resolve(self, repo: Repo, revision: str, path: str) -> tuple[Any, dict[str, str]]:
        commit = _commit(repo, revision)
        contents = repo.trees[commit].get(path)
        if contents is None:
            raise Refused(404, "Entry not found", X_Error_Code="EntryNotFound")
        tag = _sha256(contents) if path in repo.lfs else _blob(contents)
        return contents, {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Content-Type": "application/octet-stream"}

    def _duplicate(self, repo: Repo, given: dict[str, Any]) -> Any:
        known = {"repository", "visibility", "hardware", "secrets", "variables"}
        assert not given.keys() - known, given
        name = given["repository"]
        self._may_write(name)
        _hardware(given.get("hardware", "cpu-basic"))
        with self.hub.lock:
            if name in self.hub.repos:
                raise Refused(409, "You already created this space repo")
            private = given["visibility"] == "private" if "visibility" in given else repo.private
            copy = self.hub.add(name, private=private, sdk=repo.sdk)
        copy.put(repo.files)
        copy.variables.update(repo.variables)
        _set(copy, given)
        return {"url": f"{self.hub.url}/spaces/{name}"}


def _listed(variables: dict[str, str]) -> Any:
    return {key: {"key": key, "value": value} for key, value in variables.items()}


def _is_ours(name: str) -> bool:
    return name.partition("/")[0] in {USER, TEAM}


def _hardware(flavor: str) -> str:
    if flavor not in HARDWARE:
        raise Refused(400, "Invalid hardware flavor")
    return flavor


def _set(repo: Repo, given: dict[str, Any]) -> None:
    repo.hardware = _hardware(given["hardware"]) if "hardware" in given else repo.hardware
    repo.variables.update({each["key"]: each["value"] for each in given.get("variables", ())})
    repo.secrets.update({each["key"]: each["value"] for each in given.get("secrets", ())})


def _commit(repo: Repo, revision: str) -> str:
    commit = repo.refs.get(revision, revision if revision in repo.trees else None)
    if commit is None:
        raise Refused(404, f"Invalid rev id: {revision}", X_Error_Code="RevisionNotFound")
    return commit


def _info(repo: Repo, commit: str) -> Any:
    siblings = [{"rfilename": path} for path in repo.trees[commit]]
    return {"id": repo.name, "sha": commit, "private": repo.private, "sdk": repo.sdk, "siblings": siblings}


def _tree(repo: Repo, commit: str) -> Any:
    def told(path: str, contents: bytes) -> dict[str, Any]:
        facts = {"type": "file", "path": path, "size": len(contents), "oid": _blob(contents)}
        if path in repo.lfs:
            facts["lfs"] = {"oid": _sha256(contents), "size": len(contents), "pointerSize": 130}
        return facts

    return [told(path, contents) for path, contents in sorted(repo.trees[commit].items())]


def _front_matter(text: str) -> dict[str, Any]:
    block = re.match(r"---\r?\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    return yaml.safe_load(block[1]) if block else {}


def _validated(given: dict[str, Any]) -> Any:
    values = _front_matter(given["content"])
    if values.get("colorFrom", "red") not in {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}:
        raise Refused(400, '"colorFrom" must be one of [red, yellow, green, blue, indigo, purple, pink, gray]')
    return {"errors": [], "warnings": []}


def _blob(contents: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()
