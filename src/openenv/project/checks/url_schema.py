"""Validate foreign JSON Schemas, validate values against them, and generate actions from them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from ...errors import MissingExtra
from ...testing.check import CheckFailure, CheckSkip, CheckWarning
from ...testing.schemas import NoValue, SchemaValues, first_fault
from .url_server import excerpt

T = TypeVar("T")
# Longest length of generated values.
LONG = 10_000
_LENGTHS = ("minItems", "minLength", "minProperties")


def check_schema(name: str, schema: Any, seconds: float) -> None:
    """Raises `CheckFailure` if it is not a JSON Schema of objects."""
    if not isinstance(schema, dict):
        raise CheckFailure(f"{name} is {excerpt(repr(schema))}", f"answer /schema with the JSON Schema of {name}")
    if schema.get("type", "object") != "object":
        raise CheckFailure(
            f"{name} has type {excerpt(schema['type'])}", "use an object for actions, observations and states"
        )
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        raise MissingExtra("jsonschema", "core") from None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)

    def look() -> None:
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            place = "/".join(map(str, error.absolute_path)) or "its root"
            raise CheckFailure(
                f"{name} is not a JSON Schema: {excerpt(error.message)}, at {excerpt(place)}", "fix the schema"
            ) from None
        for part in _parts(schema):
            reference = part.get("$ref")
            if isinstance(reference, str):
                start, _, path = reference.partition("#")
                target: Any = schema
                for step in filter(None, path.split("/")):
                    key = step.replace("~1", "/").replace("~0", "~")
                    target = target.get(key) if isinstance(target, dict) else None
                if start or not isinstance(target, (dict, bool)):
                    raise CheckFailure(f"{name}: $ref {excerpt(reference)} has no target", "define it under $defs")

    _within(seconds, look, name)


def check_value(name: str, value: Any, schema: Any, seconds: float) -> None:
    """Raises `CheckFailure` if a value does not match its schema, `CheckWarning` if only required fields are
    absent. Skips regular expressions: some take years to match, and block the process meanwhile.
    """
    plain = _without_patterns(schema)
    lenient = {keyword: part for keyword, part in plain.items() if keyword != "required"}
    fix = "declare all sent fields in the class, or send all declared fields"
    fault = _within(seconds, lambda: first_fault(value, lenient, name), name)
    if fault is not None:
        raise CheckFailure(excerpt(fault), fix)
    absent = _within(seconds, lambda: first_fault(value, plain, name), name)
    if absent is not None:
        raise CheckWarning(excerpt(absent), fix)


def action_of(schema: Any, seconds: float) -> Any:
    """A generated action; raises `CheckSkip` if none can be generated."""
    if any(
        isinstance(part.get(name), (int, float)) and part[name] > LONG for part in _parts(schema) for name in _LENGTHS
    ):
        raise CheckSkip(f"its schema needs a length or number of items above {LONG:,}")
    try:
        plain = _without_patterns(schema)
        # Optional properties are left out: fewer values can be wrong.
        optional = frozenset(schema.get("properties", ())) - frozenset(schema.get("required", ()))
        return _within(seconds, SchemaValues(plain, skipped=optional).value, "the action")
    except NoValue as error:
        raise CheckSkip(f"no action can be generated from its schema: {excerpt(error)}") from None


def _within(seconds: float, look: Callable[[], T], name: str) -> T:
    """The result of a check of a schema, with a time limit: the work for a schema can double with each line."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(look())
        except (CheckFailure, NoValue) as error:
            future.set_exception(error)
        except RecursionError:
            future.set_exception(
                CheckFailure(f"the schema of {name} is infinitely recursive", "make each $ref finite")
            )
        except Exception as error:  # noqa: BLE001 - of a library, on a schema that was written to break it
            future.set_exception(CheckSkip(f"the schema of {name} cannot be processed: {excerpt(repr(error))}"))

    threading.Thread(target=run, daemon=True, name="openenv-schema").start()
    try:
        return future.result(seconds)
    except TimeoutError:
        raise CheckFailure(f"the schema of {name} takes more than {seconds:g} s to process", "simplify it") from None


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and its subschemas."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _without_patterns(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_patterns(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_patterns(each) for name, each in value.items()}
    # Properties may have the names of keywords. Their values are schemas, not strings.
    if isinstance(value.get("pattern"), str):
        del kept["pattern"]
    if isinstance(value.get("patternProperties"), dict) and "type" in value:
        del kept["patternProperties"]
        kept.pop("additionalProperties", None)
    return kept
