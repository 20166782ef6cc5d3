"""The tasks: pairs of a text and its answer."""

from __future__ import annotations

from random import Random

__all__ = ["task"]

WORDS = ["pear", "fig", "plum", "apple", "quince", "cherry", "medlar", "grape", "lemon", "date"]


def task(rng: Random) -> tuple[str, str]:
    """A random task with its answer."""
    return rng.choice((_squares, _order, _primes))(rng)


def _squares(rng: Random) -> tuple[str, str]:
    numbers = [rng.randint(-99, 99) for _ in range(8)]
    return f"Print the sum of the squares of {numbers}.", str(sum(number * number for number in numbers))


def _order(rng: Random) -> tuple[str, str]:
    words = rng.sample(WORDS, 6)
    return f"Print these words in one line, in the order of the alphabet: {' '.join(words)}", " ".join(sorted(words))


def _primes(rng: Random) -> tuple[str, str]:
    most = rng.randint(50, 500)
    count = sum(all(number % each for each in range(2, number)) for number in range(2, most))
    return f"Print how many prime numbers there are below {most}.", str(count)
