"""Finished episodes are followed by others as in Gymnasium's SyncVectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from openenv import BatchedEnvClient
from openenv.errors import ResetRequired, StepFailed

from .environments import Counters, FewPoles, app_of

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def pole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=FewPoles.max_episode_steps)


def same(result: Any, theirs: tuple[Any, ...]) -> None:
    observation, reward, terminated, truncated, _ = theirs
    np.testing.assert_allclose(result.observation["observation"], observation, rtol=1e-6, atol=1e-7)
    assert (result.reward == reward).all()
    assert (result.terminated == terminated).all()
    assert (result.truncated == truncated).all()


@pytest.mark.parametrize("mode", MODES)
async def test_as_gymnasium(mode):
    theirs = SyncVectorEnv([pole] * 8, autoreset_mode=MODES[mode])
    random, ended = np.random.default_rng(1), 0
    async with BatchedEnvClient(app=app_of(FewPoles), autoreset=mode) as env:
        mine = await env.reset(seed=5)
        first, _ = theirs.reset(seed=5)
        assert (mine.observation["observation"] == first).all()
        for _ in range(100):
            actions = random.integers(0, 2, 8)
            mine, outcome = await env.step(actions), theirs.step(actions)
            same(mine, outcome)
            over = mine.terminated | mine.truncated
            ended += int(over.sum())
            if mode == "same_step" and over.any():
                infos = outcome[4]
                assert (mine.info["_final_obs"] == infos["_final_obs"]).all()
                for index in np.flatnonzero(over):
                    last = mine.info["final_obs"]["observation"][index]
                    np.testing.assert_allclose(last, infos["final_obs"][index], rtol=1e-6, atol=1e-7)
            if mode == "disabled" and over.any():
                with pytest.raises(ResetRequired, match=r"episode \d is over: reset it \(mask\)"):
                    await env.step(actions)
                mine = await env.reset(mask=over)
                rows, _ = theirs.reset(options={"reset_mask": over})
                np.testing.assert_allclose(mine.observation["observation"], rows, rtol=1e-6, atol=1e-7)
    assert ended > 20
    theirs.close()


async def test_infos_say_which_episodes_they_are_of():
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        await env.reset(seed=[4, 0, -4, 0])
        result = await env.step({"by": np.array([1, 1, -1, 1])})
        assert result.terminated.tolist() == [True, False, False, False]
        assert result.truncated.tolist() == [False, False, True, False]
        result = await env.step({"by": np.array([1, 1, 1, 1]), "word": list("abcd")})
        assert Counters.calls[-1] == [False, True, False, True]
        assert result.observation["total"].tolist() == [0, 2, 0, 2]
        assert result.observation["word"] == ["begun", "b", "begun", "d"]
        assert result.reward.tolist() == [0, 1, 0, 1]
        assert result.info["begun"][[0, 2]].tolist() == [1, 1]
        assert result.info["_begun"].tolist() == [True, False, True, False]
        assert result.info["tripled"][[1, 3]].tolist() == [6, 6]
        assert result.info["_tripled"].tolist() == [False, True, False, True]
    async with BatchedEnvClient(app=app_of(Counters), autoreset="same_step") as env:
        await env.reset(seed=[4, 0, 0, 0])
        result = await env.step({"by": np.array([1, 1, 1, 1]), "word": list("abcd")})
        assert result.observation["total"].tolist() == [0, 1, 1, 1]
        assert result.info["final_obs"]["total"].tolist() == [5, 1, 1, 1]
        assert result.info["final_obs"]["word"] == list("abcd")
        assert result.info["final_info"]["tripled"].tolist() == [15, 3, 3, 3]
        assert result.info["_final_info"].tolist() == [True, False, False, False]
        assert result.info["_begun"].tolist() == [True, False, False, False]
        assert "_final_obs" not in (await env.step({"by": np.array([1, 1, 1, 1])})).info


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
async def test_an_episode_that_is_over_never_steps_even_if_a_start_has_failed(mode):
    class Failing(Counters):
        full = False

        def reset(self, *args: Any, **kwargs: Any) -> Any:
            if self.full:
                raise OSError("disk full")
            return super().reset(*args, **kwargs)

    async with BatchedEnvClient(app=app_of(Failing), autoreset=mode) as env:
        await env.reset(seed=[4, 0, 0, 4])
        if mode == "next_step":
            await env.step({"by": np.array([1, 0, 0, 0])})
        Failing.full = True
        with pytest.raises(StepFailed, match="disk full"):
            await env.step({"by": np.array([0, 0, 0, 1])})
        Failing.full = False
        if mode == "same_step":
            with pytest.raises(ResetRequired, match=r"episode 3 is over: reset it \(mask\)"):
                await env.step({"by": np.ones(4, np.int64)})
            await env.reset(mask=[False, False, False, True])
        result = await env.step({"by": np.ones(4, np.int64)})
        assert result.observation["total"].tolist() == ([0, 1, 1, 0] if mode == "next_step" else [0, 1, 1, 1])
        assert result.reward.tolist() == ([0, 0.5, 0.5, 0] if mode == "next_step" else [2.5, 0.5, 0.5, 0.5])
