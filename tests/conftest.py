"""What every test may use: coroutine tests, a Hypothesis profile, and a look at the threads left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

# A coroutine test that has not ended by then hangs; what it waits for takes milliseconds.
TEST_LIMIT_S = 60.0
JOIN_LIMIT_S = 20.0
# Each test leaves dozens of objects to pytest, as its report: after thousands, a collection would take a second.
TESTS_A_FREEZE = 100
_frozen: set[str] = set()  # modules
_tests = itertools.count(1)

# Pydantic would look for plugins in all installed packages, in each of the processes that tests start.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

# Machines that run tests are shared: how long examples take says nothing about the code. Every run has the same
# examples, so that who sees a failure has made it; with `--hypothesis-profile explore` each has new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("openenv", settings.get_profile("explore"), derandomize=True)
settings.load_profile("openenv")


def pytest_configure() -> None:
    """Processes that tests start heed signals, even where the tests run in the background or under `nohup`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and tests in each, in another order")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--shuffle`: tests of one file stay together, as fixtures of a file are made once. A later
    hook of pytest brings those together that share a parameter of such a fixture.
    """
    if (seed := config.getoption("--shuffle")) is None:
        return
    rng = random.Random(seed)
    files = {item.path: rng.random() for item in items}
    rng.shuffle(items)
    items.sort(key=lambda item: files[item.path])


def pytest_collection_finish() -> None:
    freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """After the import of a large library, as SDKs of models are, a collection would take a second, too."""
    if next(_tests) % TESTS_A_FREEZE == 0 or len(sys.modules) > len(_frozen) + 200:
        freeze()


def freeze() -> None:
    """What is left by now is no garbage: collections that tests ask for need not look at all of it each time."""
    _frozen.update(sys.modules)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs `async def` tests, each on an event loop of its own, made by the fixture `loop_factory` if there is one.

    An exception that reaches the loop's exception handler fails the test: a callback that raises has
    somebody waiting for it.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    unheard: list[dict] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(TEST_LIMIT_S):
            await test(**arguments)

    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("loop_factory")) as runner:
        runner.run(bounded())
    assert not unheard, f"the event loop's exception handler was called: {unheard}"
    return True


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For tests that ask for it: once on each event loop that servers run on."""
    return pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Every thread that the test started has ended, or does so by itself at once."""
    before = set(threading.enumerate())
    yield
    started = {each for each in threading.enumerate() if each not in before and not _is_of_daytona(each)}
    for thread in started:
        thread.join(JOIN_LIMIT_S)
    frames = sys._current_frames()
    alive = [thread for thread in started if thread.is_alive()]
    assert not alive, [(thread, traceback.format_stack(frames.get(thread.ident))) for thread in alive]


def _is_of_daytona(thread: threading.Thread) -> bool:
    """Whether it is the timer that Daytona's SDK starts minutes after the last use of a sandbox, in any test."""
    return isinstance(thread, threading.Timer) and str(thread.function.__module__).startswith("daytona.")
