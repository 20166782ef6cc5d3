"""`Chat`: how an environment speaks with a language model, as its author declares it and its server publishes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from .errors import InvalidAction

__all__ = ["Chat", "JsonAnswer", "RegexAnswer", "TagAnswer", "TextAnswer"]

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
# Facts for the trainer. A model that sees them learns from its own reward.
_UNSEEN = frozenset({"reward", "done", "metadata"})
# Braces in one answer that begin no JSON. Each costs a scan of the text behind it.
_MOST_BRACES = 1000
_JSON = json.JSONDecoder()


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonAnswer(_Answer):
    """The action is the last JSON object in the text, alone, in a code block, or after other text."""

    kind: Literal["json"] = "json"

    @property
    def form(self) -> str:
        """The form of an answer, for the model."""
        return "one complete JSON object"

    def read(self, text: str) -> dict[str, Any]:
        """The fields of the action. Raises `InvalidAction` if the text has no JSON object."""
        found, position, failures = None, text.find("{"), 0
        while position >= 0 and failures < _MOST_BRACES:
            try:
                found, position = _JSON.raw_decode(text, position)
            except (ValueError, RecursionError):
                failures += 1
                position += 1
            position = text.find("{", position)
        if not isinstance(found, dict):
            raise InvalidAction(f"end your answer with {self.form}")
        return found


class TagAnswer(_Answer):
    """The action is between the last `<tag>` and `</tag>` in the text.

    An action of one field is the text there. An action of several fields is one JSON object there, or one tag for
    each field: `<move><row>1</row><column>2</column></move>`.

    Attributes:
        tag: Name of the tag: letters, digits, `-` and `_`.
    """

    kind: Literal["tag"] = "tag"
    tag: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")

    @property
    def form(self) -> str:
        """The form of an answer, for the model."""
        return f"<{self.tag}>...</{self.tag}>"

    def read(self, text: str) -> str:
        """The text in the tag. Raises `InvalidAction` if the text has no such tag."""
        found = in_tag(self.tag, text)
        if found is None:
            raise InvalidAction(f"end your answer with {self.form}")
        return found


class RegexAnswer(_Answer):
    r"""The action's fields are the named groups of the last match in the text.

    `RegexAnswer(pattern=r"move (?P<to>\w+)")` makes `{"to": "left"}` of "I move left".

    Attributes:
        pattern: A regular expression of Python with at least one named group. Clients search the texts of models with
            it, so it must not backtrack without limit, as `(a+)+` does.
    """

    kind: Literal["regex"] = "regex"
    pattern: str

    @property
    def groups(self) -> frozenset[str]:
        """The fields of the action that the pattern names."""
        return frozenset(re.compile(self.pattern).groupindex)

    @property
    def form(self) -> str:
        """The form of an answer, for the model."""
        return f"text that matches {self.pattern}"

    def read(self, text: str) -> dict[str, str]:
        """The named groups that matched. Raises `InvalidAction` if nothing in the text matches."""
        matches = list(re.finditer(self.pattern, text))
        if not matches:
            raise InvalidAction(f"end your answer with {self.form}")
        return {name: value for name, value in matches[-1].groupdict().items() if value is not None}

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            names = re.compile(pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a regular expression: {error}") from None
        if not names:
            raise ValueError("no named group: name the action's fields, as in (?P<guess>[a-z]+)")
        return pattern


TextAnswer = JsonAnswer | TagAnswer | RegexAnswer
"""How a text becomes an action."""


class Chat(BaseModel):
    r"""How an environment speaks with a language model. All clients read it from the server.

        class WordGame(Environment):
            chat = Chat(
                system="Find the hidden word. End each answer with <guess>your word</guess>.",
                observation="{text}\nGuesses left: {guesses_left}",
                answer=TagAnswer(tag="guess"),
            )

    Attributes:
        system: The system prompt. None: the description of the environment, and the form of an answer in text. Empty:
            no system prompt.
        observation: How an observation reads: a text with names of its fields in braces. Dots lead into a field:
            `{player.health}`; `{{` is a brace. A text is inserted as it is, a list of texts as lines, null as
            nothing, any other value as JSON. None: a field such as `text` or `message`, the only string, or all of it
            as JSON. Results of the tools of an MCP environment read as the tools give them.
        images: Fields that the model gets as images. Without any: each `RenderedImage`, and each value that is
            evidently an image.
        answer: `tools`: the model calls the environment's tools, or its actions as tools. Otherwise how the action is
            read from its text.
        invalid: What the model reads after an invalid action, with the reason in place of `{error}`. The environment
            makes no step then.
        max_invalid: Number of invalid actions that ends an episode, without a return; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str | None = None
    observation: str | None = None
    images: tuple[str, ...] = ()
    answer: Literal["tools"] | Annotated[TextAnswer, Field(discriminator="kind")] = "tools"
    invalid: str = "That was no valid action, and nothing happened: {error}"
    max_invalid: PositiveInt | None = 3

    @field_validator("observation")
    @classmethod
    def _names_fields(cls, template: str | None) -> str | None:
        for name in () if template is None else names_in(template):
            _check_name(name)
        return template

    @field_validator("invalid")
    @classmethod
    def _names_error(cls, template: str) -> str:
        if set(names_in(template)) - {"error"}:
            raise ValueError("the only name in braces is {error}; write {{ for a brace")
        return template

    @model_validator(mode="after")
    def _images_are_fields(self) -> Self:
        for name in self.images:
            _check_name(name)
            if self.observation is not None and name in names_in(self.observation):
                raise ValueError(f"{name} is an image: leave it out of the text of `observation`")
        return self


def names_in(template: str) -> list[str]:
    """The names in braces, in order.

    Raises:
        ValueError: A brace has no partner, or a name has a conversion or a format.
    """
    names = []
    for _, name, spec, conversion in Formatter().parse(template):
        if spec or conversion:
            raise ValueError(f"{{{name}}} has a conversion or a format: give the name alone")
        if name is not None:
            names.append(name)
    return names


def value_at(name: str, values: Mapping[str, Any]) -> Any:
    """The value of a dotted name in nested mappings and lists. Raises `LookupError` if there is none."""
    value: Any = values
    for part in name.split("."):
        try:
            value = value[int(part) if isinstance(value, list | tuple) and part.isdecimal() else part]
        except TypeError:  # neither a mapping nor a list
            raise LookupError(name) from None
    return value


def in_tag(tag: str, text: str) -> str | None:
    """The text in the last `<tag>...</tag>`, without the spaces around it; None if there is no such tag."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if start < 0 else text[start + len(tag) + 2 : end].strip()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{{{name}}} is no name of a field: give names with dots, and write {{{{ for a brace")
    if name.partition(".")[0] in _UNSEEN:
        raise ValueError(
            f"{{{name}}}: reward, done and metadata are for the trainer and no part of what a model reads"
        )
