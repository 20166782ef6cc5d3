from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.errors import ModelFailed, ModelTimeout, ModelUnavailable
from openenv.llm.service import pause_before_retry, within

BUSY = ModelUnavailable("busy")


def failing(*errors: BaseException):
    """A call that fails so often, and then succeeds."""
    left = list(errors)

    async def call() -> str:
        calls.append(1)
        if left:
            raise left.pop(0)
        return "done"

    calls: list[int] = []
    return call, calls


async def tried(call, retries=2, timeout_s=None):
    return await within(timeout_s, call, retries=retries, backoff_s=0.0, what="somebody")


@pytest.mark.parametrize(
    ("failures", "retries", "passes"), [(0, 0, True), (1, 1, True), (1, 0, False), (3, 2, False), (1, -1, False)]
)
async def test_a_call_is_made_again_as_often_as_it_may(failures, retries, passes):
    call, calls = failing(*[BUSY] * failures)
    if passes:
        assert await tried(call, retries) == "done"
    else:
        with pytest.raises(ModelUnavailable, match="busy"):
            await tried(call, retries)
    assert len(calls) == min(failures, max(retries, 0)) + 1


async def test_what_would_fail_again_is_not_made_again():
    call, calls = failing(ModelFailed("no"))
    with pytest.raises(ModelFailed):
        await tried(call)
    assert len(calls) == 1


async def test_a_timeout_of_the_call_itself_is_not_that_of_the_deadline():
    call, calls = failing(TimeoutError("its own"), TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        await tried(call, retries=1, timeout_s=60)
    assert len(calls) == 2


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.001])
async def test_the_deadline_ends_a_call(timeout_s):
    with pytest.raises(ModelTimeout, match="somebody did not answer"):
        await tried(asyncio.Event().wait, timeout_s=timeout_s)


@given(st.floats(0.0, 1e6), st.none() | st.floats(0.0, 1e6))
def test_a_pause_is_random_up_to_its_limit_and_never_shorter_than_asked(longest_s, asked):
    pause = pause_before_retry(ModelUnavailable("busy", retry_after_s=asked), longest_s)
    assert (asked or 0.0) <= pause <= max(asked or 0.0, longest_s)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (BUSY, True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (ModelFailed("no"), False),
        (KeyError("x"), False),
        (OSError("disk"), False),
    ],
)
def test_only_what_may_pass_is_worth_a_pause(error, again):
    assert (pause_before_retry(error, 1.0) is not None) is again
