"""`EnvironmentConformance`: the checks of `openenv validate` as tests that an environment's author inherits."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from . import determinism_checks, lifecycle_checks, schema_checks
from .check import Check, CheckWarning
from .harness import ConformanceHarness
from .load_checks import CHECKS as LOAD_CHECKS

# In the order of `openenv validate`: what others build on comes first, what may end the process last.
RUNTIME: tuple[Check, ...] = (
    lifecycle_checks.runtime_session,
    lifecycle_checks.runtime_reset,
    lifecycle_checks.runtime_step,
    lifecycle_checks.runtime_state,
    schema_checks.runtime_schema,
    schema_checks.runtime_finite,
    schema_checks.runtime_reward,
    schema_checks.runtime_done,
    lifecycle_checks.runtime_after_done,
    determinism_checks.runtime_seed,
    determinism_checks.runtime_episodes,
    determinism_checks.runtime_isolation,
    lifecycle_checks.runtime_bad_action,
    lifecycle_checks.runtime_close,
)


class EnvironmentConformance:
    """Tests of an environment. Inherit from it in a module of tests, where pytest finds them; no plugin is needed.

    Example::

        class TestMyEnv(EnvironmentConformance):
            def app(self) -> Any:
                from my_env.server.app import app

                return app

    They are the questions of `openenv validate`, at its levels runtime and load. What is worth a word and no fault
    is a warning (`openenv.testing.check.CheckWarning`); what cannot be asked is skipped.

    Attributes:
        call_s: Seconds that one call of the environment may take.
        sessions: How many sessions are used at once.
        episodes: How many episodes are played to see whether memory grows.
    """

    call_s: ClassVar[float] = 10.0
    sessions: ClassVar[int] = 16
    episodes: ClassVar[int] = 100

    # What a subclass says.

    def app(self) -> Any:
        """What is served: an app that `create_app` made, or an `Environment` class."""
        raise NotImplementedError("say in app() what is served: an app of create_app, or an Environment class")

    def actions(self) -> Sequence[Mapping[str, Any]] | None:
        """Actions to play with, as plain data; None: those that the environment offers, or some of its schema."""
        return None

    # The tests.

    def test_a_session_opens(self) -> None:
        self._ask("runtime.session")

    def test_reset_works_with_and_without_a_seed_and_again(self) -> None:
        self._ask("runtime.reset")

    def test_step_takes_actions(self) -> None:
        self._ask("runtime.step")

    def test_state_counts_steps_and_names_episodes(self) -> None:
        self._ask("runtime.state")

    def test_observations_are_what_their_schema_says(self) -> None:
        self._ask("runtime.schema")

    def test_numbers_are_finite(self) -> None:
        self._ask("runtime.finite")

    def test_rewards_are_numbers_or_none(self) -> None:
        self._ask("runtime.reward")

    def test_an_episode_does_not_begin_at_its_end(self) -> None:
        self._ask("runtime.done")

    def test_a_step_after_the_end_does_no_harm(self) -> None:
        self._ask("runtime.after-done")

    def test_the_same_seed_gives_the_same_episode(self) -> None:
        self._ask("runtime.seed")

    def test_reset_leaves_nothing_behind(self) -> None:
        self._ask("runtime.episodes")

    def test_sessions_do_not_see_each_other(self) -> None:
        self._ask("runtime.isolation")

    def test_bad_actions_get_typed_errors(self) -> None:
        self._ask("runtime.bad-action")

    def test_close_frees_everything(self) -> None:
        self._ask("runtime.close")

    def test_many_sessions_at_once_play_as_each_alone(self) -> None:
        self._ask("load.sessions")

    def test_the_next_episode_works_after_a_deadline(self) -> None:
        self._ask("load.deadline")

    def test_no_call_holds_up_the_event_loop(self) -> None:
        self._ask("load.blocking")

    def test_memory_does_not_grow(self) -> None:
        self._ask("load.memory")

    def _ask(self, name: str) -> None:
        check = next(each for each in (*RUNTIME, *LOAD_CHECKS) if each.id == name)

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
            warnings.warn(warning, stacklevel=2)
