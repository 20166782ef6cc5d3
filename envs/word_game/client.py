"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import WordGameAction, WordGameObservation, WordGameState

__all__ = ["WordGameEnv"]


class WordGameEnv(EnvClient[WordGameAction, WordGameObservation, WordGameState]):
    """Plays one game at a time.

    Example::

        with WordGameEnv(base_url="http://localhost:8000").sync() as env:
            result = env.reset(seed=7)
            result = env.step(WordGameAction(guess="crane"))
            print(result.observation.text, result.reward, result.done)

    Arguments of `reset`, all by name: `seed`; `split` and `index` for a certain task; `length` (3, 4 or 5 letters),
    `lexicon` (only so many words), `max_guesses`, and `words_only=False`, which takes any letters for a guess.

    In asynchronous code the same calls are awaited. `WordGameEnv(env=WordGameEnvironment)` plays without a server.
    """
