"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import WordGameAction, WordGameObservation, WordGameState

__all__ = ["WordGameEnv"]


class WordGameEnv(EnvClient[WordGameAction, WordGameObservation, WordGameState]):
    """Client of the word game, for one game at a time.

    Example::

        with WordGameEnv(base_url="http://localhost:8000").sync() as env:
            result = env.reset(seed=7)
            result = env.step(WordGameAction(guess="crane"))
            print(result.observation.text, result.reward, result.done)

    Keyword arguments of `reset`: `seed`; `split` and `index` for a certain task; `length` (3, 4 or 5 letters),
    `lexicon` (number of words), `max_guesses`, and `words_only=False`, which allows any letters as a guess.

    Asynchronous code awaits the same calls. `WordGameEnv(env=WordGameEnvironment)` needs no server.
    """
