"""Pushing a project to Spaces of a Hub that is a real HTTP server, by the real huggingface_hub."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from openenv.errors import (
    CapacityError,
    ConnectionFailed,
    ConnectTimeout,
    Forbidden,
    InvalidArgument,
    OpenEnvError,
    Unauthorized,
    UsageError,
)
from openenv.project import Project
from openenv.project.hub import Patience, SpaceRequest, Stage, push

from .conftest import AT_ONCE
from .server import READ_TOKEN, TOKEN, USER, Fault, Hub

ENVIRONMENT = {"openenv.yaml": b"name: guess\n"}
COMMIT = "POST /api/spaces/*/commit/main"


def test_a_project_becomes_a_space(hub: Hub, project: Project) -> None:
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE)
    space = hub.repos["tester/guess"]
    assert (str(done.name), done.created, done.changed) == ("tester/guess", True, True)
    assert done.page == f"{hub.url}/spaces/tester/guess"
    assert done.url == "https://tester-guess.hf.space"
    assert done.commit == space.refs["main"]
    assert (space.sdk, space.private, space.hardware) == ("docker", False, None)
    assert space.files["models.py"] == (project.folder / "models.py").read_bytes()
    assert b"ENV ENABLE_WEB_INTERFACE=true" in space.files["Dockerfile"]
    assert "server/Dockerfile" not in space.files
    assert b"base_path: /web" in space.files["README.md"]
    assert (project.folder / "README.md").read_text() == "# Guess\n"


def test_all_that_can_be_set_is_set_before_the_first_build(hub: Hub, project: Project) -> None:
    request = SpaceRequest(
        repo_id="team/other",
        private=True,
        hardware="t4-small",
        variables={"LEVEL": "3"},
        secrets={"MODEL_KEY": "not to be seen"},
    )
    said: list[str] = []
    push(project, request, patience=AT_ONCE, say=said.append)
    space = hub.repos["team/other"]
    assert (space.private, space.hardware) == (True, "t4-small")
    assert (space.variables, space.secrets) == ({"LEVEL": "3"}, {"MODEL_KEY": "not to be seen"})
    assert hub.count("POST */variables") == 0  # each would build it again
    assert "not to be seen" not in "".join(said) + repr(request)


def test_variables_of_the_manifest_are_of_the_space_and_yours_win(hub: Hub, project: Project) -> None:
    (project.folder / "openenv.yaml").write_text("name: guess\nvariables:\n  A: 1\n  B: true\n  C: keep\n")
    push(Project.find(project.folder), SpaceRequest(variables={"C": "mine"}), patience=AT_ONCE)
    assert hub.repos["tester/guess"].variables == {"A": "1", "B": "true", "C": "mine"}


@pytest.mark.parametrize("value", [TOKEN, f"user:{TOKEN}@host", "only-you-know-it"])
def test_no_secret_becomes_a_public_variable(hub: Hub, project: Project, value: str) -> None:
    request = SpaceRequest(variables={"LOGIN": value}, secrets={"OTHER": "only-you-know-it"})
    with pytest.raises(UsageError, match="variables of a Space are public: pass it as --secret LOGIN") as told:
        push(project, request, patience=AT_ONCE)
    assert value not in str(told.value)
    assert hub.requests == []


def test_what_is_there_already_is_not_committed_again(hub: Hub, project: Project) -> None:
    push(project, SpaceRequest(variables={"A": "1"}), patience=AT_ONCE)
    (again,) = push(project, SpaceRequest(variables={"A": "1"}), patience=AT_ONCE)
    assert (again.created, again.changed) == (False, False)
    assert hub.count(COMMIT) == 1
    assert hub.count("POST */variables") == 0


def test_a_space_that_is_there_gets_what_has_changed(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT | {"old.py": b"", "keep.txt": b""}, hardware="t4-small")
    space.variables = {"A": "1", "B": "2"}
    request = SpaceRequest(
        private=True, hardware="cpu-upgrade", variables={"A": "1", "B": "3"}, secrets={"S": "kept secret"}
    )
    (done,) = push(project, request, patience=AT_ONCE)
    assert (done.created, done.changed) == (False, True)
    assert (space.private, space.hardware, space.variables) == (True, "cpu-upgrade", {"A": "1", "B": "3"})
    assert hub.count("POST */variables") == 1
    assert space.secrets == {"S": "kept secret"}
    assert {"old.py", "keep.txt", "models.py"} <= space.files.keys()


def test_a_public_space_is_private_before_anything_is_pushed_there(hub: Hub, project: Project) -> None:
    hub.add("tester/guess", ENVIRONMENT)
    push(project, SpaceRequest(private=True), patience=AT_ONCE)
    order = [each for each in hub.requests if "settings" in each or "commit" in each]
    assert order == ["PUT /api/spaces/tester/guess/settings", "POST /api/spaces/tester/guess/commit/main"]


def test_files_are_deleted_in_the_same_commit(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT | {"old/a.py": b"1", "old/b.txt": b"2", "models.py": b"older"})
    push(project, SpaceRequest(delete=("old/*.py", "models.py")), patience=AT_ONCE)
    assert "old/a.py" not in space.files
    assert "old/b.txt" in space.files
    assert space.files["models.py"] == (project.folder / "models.py").read_bytes()
    assert hub.count(COMMIT) == 1


def test_a_star_leaves_only_what_was_pushed(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", {"app.py": b"something else", "data.csv": b""})
    push(project, SpaceRequest(delete=("*",)), patience=AT_ONCE)
    assert space.files.keys() == {*Stage.of(project, SpaceRequest()).files, ".gitattributes"}


def test_what_shall_be_private_is_not_proposed_in_public(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT)
    with pytest.raises(UsageError, match="tester/guess is public, and a pull request changes files only: leave out"):
        push(project, SpaceRequest(create_pr=True, private=True), patience=AT_ONCE)
    assert hub.count(COMMIT) == 0
    space.private = True
    (done,) = push(project, SpaceRequest(create_pr=True, private=True), patience=AT_ONCE)
    assert done.pull_request is not None


def test_a_pull_request_changes_nothing_but_proposes(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT)
    before = dict(space.files)
    (done,) = push(project, SpaceRequest(create_pr=True), patience=AT_ONCE)
    assert done.pull_request == f"{hub.url}/spaces/tester/guess/discussions/1"
    assert space.files == before
    assert "models.py" in space.trees[space.refs["refs/pr/1"]]


def test_a_pull_request_needs_a_space_and_changes_no_settings(hub: Hub, project: Project) -> None:
    with pytest.raises(UsageError, match=r"no Space tester/guess for a pull request: leave out --create-pr"):
        push(project, SpaceRequest(create_pr=True), patience=AT_ONCE)
    with pytest.raises(InvalidArgument, match="changes files only"):
        SpaceRequest(create_pr=True, hardware="t4-small")
    assert hub.repos == {}


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub
def test_large_and_binary_files_go_by_lfs(hub: Hub, project: Project) -> None:
    weights = bytes(range(256)) * 50
    (project.folder / "weights.bin").write_bytes(weights)
    push(project, SpaceRequest(), patience=AT_ONCE)
    assert hub.repos["tester/guess"].files["weights.bin"] == weights
    assert hub.repos["tester/guess"].lfs == {"weights.bin"}


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_an_upload_by_lfs_that_fails_is_tried_again(hub: Hub, project: Project) -> None:
    (project.folder / "weights.bin").write_bytes(bytes(range(256)) * 50)
    hub.faults = [Fault("PUT /lfs/*", status=503), Fault("POST */objects/batch", status=502)]
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE)
    assert done.changed
    hub.faults = [Fault("PUT /lfs/*", times=9, status=403, text="no room")]
    (project.folder / "weights.bin").write_bytes(bytes(range(256)) * 51)
    with pytest.raises(Forbidden, match=r"this token has no permission .*tester/guess was not changed"):
        push(project, SpaceRequest(), patience=AT_ONCE)


# Several Spaces.


def test_several_spaces_are_numbered_and_not_all_at_once(hub: Hub, project: Project) -> None:
    heard: list[str] = []
    done = push(project, SpaceRequest(count=6), patience=AT_ONCE, heard=lambda each: heard.append(str(each.name)))
    assert [str(each.name) for each in done] == [f"tester/guess-{number}" for number in range(1, 7)]
    assert sorted(heard) == sorted(hub.repos) == sorted(str(each.name) for each in done)
    assert hub.most <= 4


def test_what_fails_for_one_of_several_is_told_and_keeps_no_other(hub: Hub, project: Project) -> None:
    hub.add("tester/guess-2", {"app.py": b""}, sdk="gradio")
    done = push(project, SpaceRequest(count=3), patience=AT_ONCE)
    assert [each.error is None for each in done] == [True, False, True]
    assert "tester/guess-2 exists with sdk gradio" in str(done[1].error)
    assert {"tester/guess-1", "tester/guess-3"} <= hub.repos.keys()


# Who may, and where.


def test_without_a_token_it_says_how_to_get_one(
    hub: Hub, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Unauthorized, match=r"no token for the Hub: run `hf auth login`, or set HF_TOKEN"):
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert hub.requests == []


def test_a_token_that_is_refused_is_not_told(hub: Hub, project: Project) -> None:
    with pytest.raises(Unauthorized, match="rejects this token") as caught:
        push(project, SpaceRequest(), token="hf_wrong_token_of_nobody", patience=AT_ONCE)
    assert "hf_wrong" not in str(caught.value)
    with pytest.raises(Forbidden, match="is read-only"):
        push(project, SpaceRequest(), token=READ_TOKEN, patience=AT_ONCE)


def test_a_space_of_somebody_else_is_not_ours(hub: Hub, project: Project) -> None:
    with pytest.raises(Forbidden, match=r"alice/guess belongs neither to tester.*push to tester/guess"):
        push(project, SpaceRequest(repo_id="alice/guess"), patience=AT_ONCE)
    hub.faults = [Fault("POST */repos/create", status=403, text="you cannot write to this namespace")]
    with pytest.raises(Forbidden, match=r"has no permission \(you cannot write to this namespace\)"):
        push(project, SpaceRequest(repo_id="team/guess"), patience=AT_ONCE)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"sdk": "gradio"}, r"exists with sdk gradio.*--repo-id"),
        ({"files": {"app.py": b"", "data.csv": b""}}, r"is not an environment \(app.py, data.csv; no openenv.yaml\)"),
    ],
)
def test_a_space_of_something_else_stays_as_it_is(hub: Hub, project: Project, there: dict, says: str) -> None:
    space = hub.add("tester/guess", **there)
    before = dict(space.files)
    with pytest.raises(UsageError, match=says):
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert space.files == before


def test_a_name_that_is_taken_where_nobody_sees_it(hub: Hub, project: Project) -> None:
    hub.faults = [Fault("POST */repos/create", status=409, text="You already created this space repo")]
    with pytest.raises(Forbidden, match=r"tester/guess exists, but is hidden from this token"):
        push(project, SpaceRequest(), patience=AT_ONCE)


NO_NAMES = ["a/b/c", "-guess", "guess.", "gu--ess", "gu..ess", "gu ess", "guess.git", "", "x" * 97]


def test_a_name_that_is_none_is_found_before_anything_is_asked(hub: Hub, project: Project) -> None:
    for name in NO_NAMES:
        with pytest.raises(InvalidArgument, match="not the name of a Space or dataset: write owner/name"):
            push(project, SpaceRequest(repo_id=name or "/"), patience=AT_ONCE)
    assert hub.requests == []


def test_the_longest_name_has_no_room_for_a_number(hub: Hub, project: Project) -> None:
    with pytest.raises(InvalidArgument, match="at most 96"):
        push(project, SpaceRequest(repo_id="team/" + "x" * 90, count=2), patience=AT_ONCE)
    assert hub.repos == {}


def test_hardware_that_nobody_knows(hub: Hub, project: Project) -> None:
    with pytest.raises(UsageError, match=r"'t4-smal' may not be hardware of the Hub: use --hardware t4-small"):
        push(project, SpaceRequest(hardware="t4-smal"), patience=AT_ONCE)
    push(project, SpaceRequest(), patience=AT_ONCE)
    with pytest.raises(UsageError, match="'t4-smal' may not be hardware"):
        push(project, SpaceRequest(hardware="t4-smal"), patience=AT_ONCE)


def test_hardware_that_only_the_hub_knows(hub: Hub, project: Project) -> None:
    push(project, SpaceRequest(hardware="brand-new-gpu"), patience=AT_ONCE)
    assert hub.repos["tester/guess"].hardware == "brand-new-gpu"


def test_what_the_hub_wants_to_be_paid_for(hub: Hub, project: Project) -> None:
    hub.pays = False
    with pytest.raises(Forbidden, match=r"requires payment \(Docker Spaces on cpu-basic need a PRO"):
        push(project, SpaceRequest(), patience=AT_ONCE)


def test_a_readme_that_the_hub_refuses(hub: Hub, project: Project) -> None:
    (project.folder / "README.md").write_text("---\ncolorFrom: ochre\n---\n")
    with pytest.raises(UsageError, match=r"Invalid metadata in README.md.*colorFrom"):
        push(project, SpaceRequest(), patience=AT_ONCE)


# Secrets.


def test_a_file_with_the_token_or_a_secret_in_it_is_not_pushed(hub: Hub, project: Project) -> None:
    (project.folder / "client.py").write_text(f"TOKEN = '{TOKEN}'\n")
    with pytest.raises(UsageError, match=r"client.py contains your token or the value of a --secret") as caught:
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert TOKEN not in str(caught.value)
    (project.folder / "client.py").write_text("KEY = 'abcdefgh-1'\n")
    with pytest.raises(UsageError, match=r"client.py contains"):
        push(project, SpaceRequest(secrets={"KEY": "abcdefgh-1"}), patience=AT_ONCE)
    assert hub.repos == {}


def test_a_secret_is_in_no_error(hub: Hub, project: Project) -> None:
    hub.faults = [Fault("POST */repos/create", status=400, text="bad secret: hush-hush-hush")]
    with pytest.raises(UsageError, match="bad secret") as caught:
        push(project, SpaceRequest(secrets={"S": "hush-hush-hush"}), patience=AT_ONCE)
    assert "hush-hush" not in str(caught.value)


def test_a_variable_that_looks_like_a_secret_is_pointed_at(hub: Hub, project: Project) -> None:
    said: list[str] = []
    push(project, SpaceRequest(variables={"API_KEY": "abcdefgh"}), patience=AT_ONCE, say=said.append)
    assert "the variable API_KEY of the Space is public: use --secret if it is one" in said
    with pytest.raises(InvalidArgument, match="cannot be public and secret"):
        SpaceRequest(variables={"A": "1"}, secrets={"A": "2"})
    with pytest.raises(InvalidArgument, match="'A B' is not the name of a variable"):
        SpaceRequest(variables={"A B": "1"})


# The road, and a Hub that has its troubles.


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("path", ["GET /api/whoami-v2", "POST */repos/create", "POST */preupload/main", COMMIT])
def test_what_passes_is_tried_again(hub: Hub, project: Project, path: str, status: int) -> None:
    hub.faults = [Fault(path, times=2, status=status)]
    said: list[str] = []
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE, say=said.append)
    assert done.changed
    assert len([each for each in said if f"status {status}" in each and "trying again" in each]) == 2


def test_the_hub_says_how_long_to_wait(hub: Hub, project: Project) -> None:
    hub.faults = [Fault(COMMIT, status=429, headers={"Retry-After": "1"})]
    said: list[str] = []
    push(project, SpaceRequest(), patience=AT_ONCE, say=said.append)
    assert "uploading to tester/guess: the Hub answers with status 429; trying again in 1 s (1 of 3)" in said


@pytest.mark.parametrize("headers", [{"Retry-After": "3600"}, {"RateLimit": '"api";r=0;t=3600'}])
def test_nobody_waits_for_an_hour(hub: Hub, project: Project, headers: dict[str, str]) -> None:
    hub.faults = [Fault("POST */preupload/main", times=9, status=429, headers=headers)]
    with pytest.raises(CapacityError, match="run the same command again in 3600 s") as caught:
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert caught.value.retry_after_s == 3600
    assert hub.count("POST */preupload/main") == 1


def test_attempts_are_counted_and_told(hub: Hub, project: Project) -> None:
    hub.faults = [Fault(COMMIT, times=99, status=503)]
    with pytest.raises(
        ConnectionFailed, match=r"status 503.*tried 4 times\); tester/guess was created, and is empty: you can run"
    ):
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert hub.count(COMMIT) == 4
    hub.faults = []
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE)
    assert (done.created, done.changed) == (False, True)


def test_an_upload_that_is_cut_goes_on(hub: Hub, project: Project) -> None:
    (project.folder / "notes.txt").write_text("x" * 100_000)
    hub.faults = [Fault(COMMIT, reads=5000)]
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE)
    assert done.changed
    assert len(hub.repos["tester/guess"].files["notes.txt"]) == 100_000


def test_an_upload_that_is_cut_each_time_says_what_is_there(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT)
    before = dict(space.files)
    hub.faults = [Fault(COMMIT, times=99, reads=10)]
    with pytest.raises(ConnectionFailed, match="has all of it or none: you can run the same command"):
        push(project, SpaceRequest(), patience=AT_ONCE)
    assert space.files == before


def test_an_answer_that_was_lost_is_no_second_commit(hub: Hub, project: Project) -> None:
    hub.faults = [Fault("POST */repos/create", status=0, after=True), Fault(COMMIT, status=0, after=True)]
    (done,) = push(project, SpaceRequest(), patience=AT_ONCE)
    assert done.commit == hub.repos["tester/guess"].refs["main"]
    assert hub.count(COMMIT) == 1


def test_a_pull_request_is_not_opened_twice(hub: Hub, project: Project) -> None:
    space = hub.add("tester/guess", ENVIRONMENT)
    hub.faults = [Fault(COMMIT, status=0, after=True)]
    with pytest.raises(ConnectionFailed, match=r"check whether the pull request exists \(.*/discussions\)"):
        push(project, SpaceRequest(create_pr=True), patience=AT_ONCE)
    assert [ref for ref in space.refs if ref.startswith("refs/pr")] == ["refs/pr/1"]


def test_a_hub_that_is_not_there(hub: Hub, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionFailed, match=r"127.0.0.1:9 \(HF_ENDPOINT\) cannot be reached.*tried 4 times"):
        push(project, SpaceRequest(), patience=AT_ONCE)


@pytest.mark.parametrize("path", ["GET /api/whoami-v2", "GET /api/spaces/*", "POST */repos/create"])
def test_an_address_that_is_no_hubs(hub: Hub, project: Project, path: str) -> None:
    hub.faults = [Fault(path, status=200)]
    with pytest.raises(
        UsageError, match=r"\(HF_ENDPOINT\) does not answer like the Hub \('\w+'\): check the address"
    ):
        push(project, SpaceRequest(), patience=AT_ONCE)


def test_a_hub_that_says_nothing(hub: Hub, project: Project) -> None:
    release = threading.Event()
    hub.faults = [Fault("GET /api/whoami-v2", times=9, held=release)]
    with pytest.raises(ConnectTimeout, match=r"does not answer in time.*tried 2 times"):
        push(project, SpaceRequest(), patience=replace(AT_ONCE, silence_s=0.2, attempts=2))
    release.set()


def test_a_token_is_sent_over_no_open_road(hub: Hub, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example.org")
    with pytest.raises(UsageError, match="must begin with https://"):
        push(project, SpaceRequest(), patience=AT_ONCE)


def test_the_library_is_as_it_was_afterwards(hub: Hub, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, get_session, utils

    verbosity = utils.logging.get_verbosity()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    within: list[bool] = []
    push(project, SpaceRequest(), patience=AT_ONCE, heard=lambda _: within.append(constants.HF_HUB_DISABLE_XET))
    assert (within, constants.HF_HUB_DISABLE_XET) == ([True], False)
    assert utils.logging.get_verbosity() == verbosity
    assert get_session().timeout.read is None
    utils.close_session()


def test_several_errors_are_one_of_each(hub: Hub, project: Project) -> None:
    hub.faults = [Fault("POST */repos/create", times=99, status=403)]
    done = push(project, SpaceRequest(count=2), patience=AT_ONCE)
    assert all(isinstance(each.error, OpenEnvError) for each in done)
    assert USER in str(done[0].name)
    assert Patience().attempts == 4
