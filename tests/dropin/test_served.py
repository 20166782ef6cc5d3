"""Three packages as their authors write them, installed by pip against our wheel and served in every way."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from .driven import Driven, every_check
from .installation import DRIVERS, NAMES, Installation, checks_of, pip
from .server import PACKAGE_WAYS, Server

pytestmark = [pytest.mark.real, pytest.mark.slow]

BINDINGS = DRIVERS / "bindings.py"


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return Driven(tmp_path_factory.mktemp("driven"))


@pytest.fixture(scope="module")
def bound(ours: Installation) -> dict[str, str | None]:
    """What became of the programs that bind us as trainers do."""
    return ours.drive(BINDINGS, "none")


def test_the_packages_install_with_pip_against_our_wheel(ours: Installation) -> None:
    pip(ours.python, "check")
    where = ours.run("-c", "import openenv, openenv_core; print(openenv.__file__); print(openenv_core.__file__)")
    assert where.returncode == 0, where.stderr
    assert all(str(ours.python.parents[1]) in line for line in where.stdout.split())


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_package_loads_no_server(ours: Installation, name: str) -> None:
    program = f"import sys, {name}; print([m for m in ('fastapi', 'uvicorn', 'gradio') if m in sys.modules])"
    assert ours.run("-c", program).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("way", "name", "check"),
    [
        (way, *pair)
        for way, pair in itertools.product(
            PACKAGE_WAYS, [*every_check(), *((n, "leaves no disorder") for n in NAMES)]
        )
    ],
)
def test_a_served_package(ours: Installation, driven: Driven, way: str, name: str, check: str) -> None:
    assert (failure := driven.outcome(name, check, ours, ours, way)) is None, failure


@pytest.mark.parametrize("check", checks_of(BINDINGS))
def test_bound_as_trainers_bind_it(bound: dict[str, str | None], check: str) -> None:
    assert bound[check] is None, bound[check]


def test_the_number_of_sessions_is_exact_over_all_workers(ours: Installation, tmp_path: Path) -> None:
    with Server(ours, "parcel_env", "serve", tmp_path, {"MAX_CONCURRENT_ENVS": "3"}) as served:
        outcome = ours.drive(DRIVERS / "full.py", served.url)
    assert not any(outcome.values()), outcome


def test_production_serves_tools_and_no_control(ours: Installation, tmp_path: Path) -> None:
    with Server(ours, "abacus_env", "serve", tmp_path, {"OPENENV_MODE": "production"}) as served:
        outcome = ours.drive(DRIVERS / "production.py", served.url)
    assert not any(outcome.values()), outcome


def test_a_client_of_another_environment_is_told_what_differs(ours: Installation, tmp_path: Path) -> None:
    with Server(ours, "parcel_env", "uvicorn", tmp_path) as served:
        outcome = ours.drive(DRIVERS / "stranger.py", served.url)
    assert not any(outcome.values()), outcome


def test_the_contract_of_a_project_is_kept_in_its_ci(ours: Installation, tmp_path: Path) -> None:
    dumped = ours.run("-m", "openenv", "contract", "dump", "harbor_env.server.app:app")
    assert dumped.returncode == 0, dumped.stderr
    contract = tmp_path / "contract.json"
    contract.write_text(dumped.stdout)
    assert "wait_s" in dumped.stdout
    project = ours.folder / "harbor_env"
    assert ours.run("-m", "openenv", "contract", "check", project, contract).returncode == 0
    contract.write_text(dumped.stdout.replace("wait_s", "pause_s"))
    changed = ours.run("-m", "openenv", "contract", "check", project, contract)
    assert changed.returncode == 1
    assert "wait_s" in changed.stdout


def test_a_package_that_cannot_be_imported_ends_the_server_with_a_reason(ours: Installation, tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text("import no_such_library_at_all\n")
    ended = ours.run("-m", "openenv", "serve", "broken_env:app", "--port", "0", "--workers", "2", cwd=tmp_path)
    assert ended.returncode not in {0, -9}
    assert "no_such_library_at_all" in ended.stderr
    assert "broken_env" in ended.stderr
