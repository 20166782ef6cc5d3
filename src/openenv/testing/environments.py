"""`EnvironmentConformance`: the checks of `openenv validate` as tests that an environment's author inherits."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from . import batch_checks, lifecycle_checks, load_checks, schema_checks
from .check import Check, CheckWarning
from .harness import ConformanceHarness

# The checks of the tests below, in the order of `openenv validate`: checks that others need first, checks that may
# end the process last.
CHECKS: list[Check] = []


def _test_of(check: Check) -> Callable[[EnvironmentConformance], None]:
    """Adds a check to `CHECKS`. Returns a test that runs it."""
    CHECKS.append(check)

    def test(self: EnvironmentConformance) -> None:
        async def run() -> None:
            harness = ConformanceHarness(
                self.app(), call_s=self.call_s, sessions=self.sessions, episodes=self.episodes, actions=self.actions()
            )
            try:
                await check.run(harness)
            finally:
                await harness.server.aclose()

        try:
            asyncio.run(run())
        except CheckWarning as warning:
            warnings.warn(warning, stacklevel=1)

    return test


class EnvironmentConformance:
    """Tests of an environment. Inherit from it in a module of tests, where pytest finds them; no plugin is needed.

    Example::

        class TestMyEnv(EnvironmentConformance):
            def app(self) -> Any:
                from my_env.server.app import app

                return app

    The tests are the checks of `openenv validate` at the levels runtime and load. A possible problem is a warning
    (`openenv.testing.check.CheckWarning`); a check that cannot run is skipped.

    Attributes:
        call_s: Maximum of seconds for one call of the environment.
        sessions: Number of concurrent sessions.
        episodes: Number of episodes that are played to measure the growth of memory.
    """

    call_s: ClassVar[float] = 10.0
    sessions: ClassVar[int] = 16
    episodes: ClassVar[int] = 100

    # Attributes for subclasses.

    def app(self) -> Any:
        """The app or class under test: an app that `create_app` made, or an `Environment` class."""
        raise NotImplementedError("implement app(): return an app of create_app, or an Environment class")

    def actions(self) -> Sequence[Mapping[str, Any]] | None:
        """Actions to play, as plain data. None for those that the environment offers, or that its schema allows."""
        return None

    # The tests.

    test_a_session_opens = _test_of(lifecycle_checks.runtime_session)
    test_reset_works_with_and_without_a_seed_and_again = _test_of(lifecycle_checks.runtime_reset)
    test_step_takes_actions = _test_of(lifecycle_checks.runtime_step)
    test_state_counts_steps_and_names_episodes = _test_of(lifecycle_checks.runtime_state)
    test_observations_are_what_their_schema_says = _test_of(schema_checks.runtime_schema)
    test_numbers_are_finite = _test_of(schema_checks.runtime_finite)
    test_rewards_are_numbers_or_none = _test_of(schema_checks.runtime_reward)
    test_an_episode_does_not_begin_at_its_end = _test_of(schema_checks.runtime_done)
    test_a_step_after_the_end_does_no_harm = _test_of(lifecycle_checks.runtime_after_done)
    test_the_same_seed_gives_the_same_episode = _test_of(lifecycle_checks.runtime_seed)
    test_reset_leaves_nothing_behind = _test_of(lifecycle_checks.runtime_episodes)
    test_sessions_do_not_see_each_other = _test_of(lifecycle_checks.runtime_isolation)
    test_bad_actions_get_typed_errors = _test_of(lifecycle_checks.runtime_bad_action)
    test_close_frees_everything = _test_of(lifecycle_checks.runtime_close)
    test_many_sessions_at_once_play_as_each_alone = _test_of(load_checks.load_sessions)
    test_the_next_episode_works_after_a_deadline = _test_of(load_checks.load_deadline)
    test_no_call_holds_up_the_event_loop = _test_of(load_checks.load_blocking)
    test_memory_does_not_grow = _test_of(load_checks.load_memory)


class BatchedEnvironmentConformance(EnvironmentConformance):
    """Tests of a `BatchedEnvironment`: those of every environment, and those of its batches."""

    test_a_batch_returns_a_row_for_each_episode = _test_of(batch_checks.runtime_batch)
    test_the_same_seeds_give_the_same_batch = _test_of(batch_checks.runtime_batch_seed)
    test_episodes_outside_of_the_mask_do_not_change = _test_of(batch_checks.runtime_batch_mask)
    test_an_episode_is_the_same_in_each_slot = _test_of(batch_checks.runtime_batch_slot)
    test_results_stay_as_they_are = _test_of(batch_checks.runtime_batch_buffer)
