"""How many sessions the processes of a load can have."""

import resource

import pytest

from openenv._processes import raise_file_limit
from openenv.bench import load
from openenv.bench.load import check_share, enough_processes
from openenv.errors import UsageError


@pytest.fixture
def _same_limit_after():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_same_limit_after")
def test_the_limit_is_raised_as_far_as_it_may():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    assert raise_file_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert raise_file_limit() == hard


@pytest.mark.parametrize(
    ("soft", "expected"), [(resource.RLIM_INFINITY, 1_048_576), (4096, 4096)], ids=["none at all", "a soft one"]
)
def test_where_the_system_sets_no_limit_the_kernel_does(monkeypatch, soft, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, resource.RLIM_INFINITY))
    assert raise_file_limit() == expected


@pytest.mark.parametrize(("sessions", "processes"), [(1, 1), (18_000, 1), (36_000, 2), (20_000, 8)])
def test_a_share_that_fits_is_accepted(sessions, processes):
    check_share(sessions, processes, 20_000)


@pytest.mark.parametrize(("sessions", "processes", "needed"), [(18_001, 1, 2), (36_001, 2, 3), (100_000, 1, 6)])
def test_a_share_that_does_not_fit_names_the_option_and_the_number(sessions, processes, needed):
    with pytest.raises(UsageError, match=f"use --processes {needed}$"):
        check_share(sessions, processes, 20_000)


@pytest.mark.parametrize(("sessions", "processes"), [(0, 1), (1, 0), (-1, 1)])
def test_nothing_cannot_be_shared_out(sessions, processes):
    with pytest.raises(UsageError, match="at least one"):
        check_share(sessions, processes, 20_000)


@pytest.mark.parametrize(
    ("sessions", "cores", "processes"),
    [(1, 8, 1), (1024, 8, 1), (1025, 8, 2), (16_384, 2, 2), (16_384, 64, 16), (40_000, 2, 3), (10_000_000, 2, 16)],
)
def test_processes_are_chosen_by_sessions_cores_and_files(monkeypatch, sessions, cores, processes):
    monkeypatch.setattr(load.os, "cpu_count", lambda: cores)
    assert enough_processes(sessions, 20_000) == processes
