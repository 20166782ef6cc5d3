"""Generate values that a JSON Schema allows, and find the place where a value violates one."""

from __future__ import annotations

import base64
import json
import math
import operator
import re
import string
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import Any

# The parser of the standard library, which has no public name. Tests check the parts that are used here.
_parse = re._parser.parse  # type: ignore[attr-defined]

_ALPHABET = string.ascii_letters + string.digits + " _-."
_CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_letters + string.digits,
    "CATEGORY_WORD": string.ascii_letters + string.digits + "_",
    "CATEGORY_NOT_WORD": " .-",
}
# Maximum of repetitions of a part without a limit.
MORE_REPEATS = 4
ATTEMPTS = 20
# Most parts of a generated value and of a generated text, and most steps of a search: a schema may come from an
# unknown server.
_MOST_PARTS = 10_000
_LONGEST_TEXT = 2000
_MOST_STEPS = 1e8
_NESTED = 1000


def text_of(pattern: str, random: Random) -> str:
    """A string that matches a pattern.

    Raises:
        ValueError: The pattern is invalid, or has parts (such as lookahead) that this function does not support; its
            texts are too long, or to search them may take too long.
    """
    try:
        tree, wanted = _read(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(f"it is not a regular expression of Python: {error}") from None
    for _ in range(ATTEMPTS):
        parts = list(islice(_sequence(tree, random), _LONGEST_TEXT))
        text = "".join(parts)
        if len(parts) < _LONGEST_TEXT and _most_steps(tree, text) <= _MOST_STEPS and wanted.search(text):
            return text
    raise ValueError("no matching string was found; lower the numbers of its repetitions, and do not nest them")


def found_in(pattern: str, text: str) -> bool:
    """Whether a pattern matches in a string.

    True for a pattern that is not valid in Python, since other dialects exist, and if the search may take too long.
    """
    try:
        tree, wanted = _read(pattern)
        return _most_steps(tree, text) > _MOST_STEPS or wanted.search(text) is not None
    except (re.error, OverflowError):
        return True


def _read(pattern: str) -> tuple[Any, re.Pattern[str]]:
    with warnings.catch_warnings():  # about future meanings of the pattern
        warnings.simplefilter("ignore", FutureWarning)
        return _parse(pattern), re.compile(pattern)


def _most_steps(tree: Any, text: str) -> float:
    repeats = _repeats(tree)
    return 2.0 ** min(1000, len(text)) if repeats >= _NESTED else float(len(text)) ** min(repeats, 60)


def _repeats(tree: Any) -> int:
    """The power of a text's length with which the steps of a search may grow; `_NESTED` if exponentially."""
    found = 0
    for _, argument in tree:
        parts = list(argument) if isinstance(argument, list | tuple) else []
        inner = sum(map(_repeats, (part for part in _flat(parts) if isinstance(part, type(tree)))))
        is_repeat = len(parts) == 3 and isinstance(parts[2], type(tree))
        varies = is_repeat and parts[0] != parts[1]
        found += _NESTED if varies and inner else inner + varies
    return found


def _flat(parts: Iterable[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, list | tuple):
            yield from _flat(part)
        else:
            yield part


def _sequence(tree: Any, random: Random) -> Iterator[str]:
    for operation, argument in tree:
        yield from _part(str(operation), argument, random)


def _part(operation: str, argument: Any, random: Random) -> Iterator[str]:  # noqa: C901 - one line a kind
    match operation:
        case "LITERAL":
            yield chr(argument)
        case "ANY":
            yield random.choice(string.ascii_letters)
        case "NOT_LITERAL":
            yield random.choice([letter for letter in _ALPHABET if ord(letter) != argument])
        case "IN":
            yield random.choice(_choices(argument))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, tree = argument
            for _ in range(random.randint(least, min(int(most), least + MORE_REPEATS))):
                yield ""  # an empty part counts too
                yield from _sequence(tree, random)
        case "SUBPATTERN":
            yield from _sequence(argument[3], random)
        case "ATOMIC_GROUP":
            yield from _sequence(argument, random)
        case "BRANCH":
            yield from _sequence(random.choice(argument[1]), random)
        case "AT":
            yield ""
        case _:
            raise ValueError(f"no string can be generated for its part {operation}")


def _choices(parts: Any) -> str:
    allowed = ""
    for operation, argument in parts:
        match str(operation):
            case "LITERAL":
                allowed += chr(argument)
            case "RANGE":
                low, high = argument
                allowed += "".join(map(chr, range(low, min(high, low + 200) + 1)))
            case "CATEGORY":
                allowed += _CATEGORIES[str(argument)]
    if parts and str(parts[0][0]) == "NEGATE":
        return "".join(letter for letter in _ALPHABET if letter not in allowed) or "~"
    if not allowed:
        raise ValueError("one of its character sets is empty")
    return allowed


Schema = Mapping[str, Any]
MAX_DEPTH = 60

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "integer": (int,),
    "number": (int, float),
}

_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def first_fault(value: Any, schema: Schema, place: str) -> str | None:
    """The first fault of a value, as text. None if the value matches the schema.

    Args:
        value: The value from JSON.
        schema: The schema, with its `$defs`.
        place: The name of the value: `observation`.
    """
    try:
        return next(_Faults(schema.get("$defs", {})).of(value, schema, place, 0), None)
    except (AttributeError, LookupError, TypeError, ValueError):  # not a valid schema
        return None


def undeclared(value: Any, schema: Schema) -> list[str]:
    """Fields of an object that its schema does not declare, even if it allows them."""
    faults = _Faults(schema.get("$defs", {}))
    properties = faults.resolved(schema).get("properties")
    return (
        [] if properties is None or not isinstance(value, dict) else [key for key in value if key not in properties]
    )


class _Faults:
    def __init__(self, definitions: Schema):
        self._definitions = definitions

    def resolved(self, schema: Schema) -> Schema:
        for _ in range(MAX_DEPTH):
            if "$ref" not in schema:
                break
            schema = self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
        return schema

    def of(self, value: Any, schema: Any, place: str, depth: int) -> Iterator[str]:
        if schema is False:
            yield f"{place} is not allowed"
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return
        schema = self.resolved(schema)
        for part in schema.get("allOf", ()):
            yield from self.of(value, part, place, depth + 1)
        variants = schema.get("anyOf") or schema.get("oneOf")
        if variants:
            yield from self._of_variants(value, variants, place, depth)
        if "const" in schema and not _same(value, schema["const"]):
            yield f"{place} is {_shown(value)}, but must be {_shown(schema['const'])}"
        if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
            yield f"{place} is {_shown(value)}, but must be one of {_shown(schema['enum'])}"
        kinds = schema.get("type")
        if kinds is not None:
            kinds = [kinds] if isinstance(kinds, str) else kinds
            # msgpack carries bytes as they are; their schema is that of JSON, which has none.
            binary = isinstance(value, bytes) and schema.get("format") in {"binary", "base64url"}
            if not binary and not any(_is_of(value, kind) for kind in kinds):
                yield f"{place} is {_shown(value)} ({_kind(value)}), but the type must be {' or '.join(kinds)}"
                return
        yield from self._of_contents(value, schema, place, depth)

    def _of_variants(self, value: Any, variants: Any, place: str, depth: int) -> Iterator[str]:
        faults = [next(self.of(value, each, place, depth + 1), None) for each in variants]
        if None in faults:
            return
        # If no variant matches, the fault of a variant with the right type is more helpful.
        kinds = [str(self.resolved(each).get("type")) for each in variants]
        near = (
            str(fault) for fault, kind in zip(faults, kinds, strict=True) if kind in _TYPES and _is_of(value, kind)
        )
        yield next(near, f"{place} is {_shown(value)} ({_kind(value)}), but the type must be {' or '.join(kinds)}")

    def _of_contents(self, value: Any, schema: Schema, place: str, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", math.inf):
                yield f"{place} has {len(value)} characters, but must have {_range(schema, 'minLength', 'maxLength')}"
            pattern = schema.get("pattern")
            if isinstance(pattern, str) and not found_in(pattern, value):
                yield f"{place} is {_shown(value)}, which does not match {pattern}"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            for keyword, holds in _BOUNDS.items() if isinstance(value, int) or math.isfinite(value) else ():
                bound = schema.get(keyword)
                if isinstance(bound, (int, float)) and not holds(value, bound):
                    yield f"{place} is {value!r}, but its schema has {keyword} {bound!r}"
        elif isinstance(value, list):
            yield from self._of_list(value, schema, place, depth)
        elif isinstance(value, dict):
            yield from self._of_object(value, schema, place, depth)

    def _of_list(self, value: list[Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", math.inf):
            yield f"{place} has {len(value)} items, but must have {_range(schema, 'minItems', 'maxItems')}"
        if schema.get("uniqueItems") and any(each in value[:index] for index, each in enumerate(value)):
            yield f"{place} has duplicate items: {_shown(value)}"
        fixed = schema.get("prefixItems", ())
        for index, each in enumerate(value):
            part = fixed[index] if index < len(fixed) else schema.get("items", True)
            yield from self.of(each, part, f"{place}[{index}]", depth + 1)

    def _of_object(self, value: dict[str, Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{place}.{name} is missing, but its schema requires it"
        patterns = schema.get("patternProperties", {})
        more = schema.get("additionalProperties", True)
        for name, each in value.items():
            matching = [part for pattern, part in patterns.items() if found_in(pattern, name)]
            if name in properties:
                yield from self.of(each, properties[name], f"{place}.{name}", depth + 1)
            elif matching:
                yield from self.of(each, matching[0], f"{place}.{name}", depth + 1)
            elif more is False:
                yield f"{place}.{name} ({_shown(each)}) is not in the schema, which allows no additional fields"
            else:
                yield from self.of(each, more, f"{place}.{name}", depth + 1)


def _is_of(value: Any, kind: str) -> bool:
    if kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    # JSON has only one type of numbers: 1.0 is an integer.
    return isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: Any) -> str:
    return next((name for name in _TYPES if _is_of(value, name)), type(value).__name__)


def _range(schema: Schema, least: str, most: str) -> str:
    said = [f"{word} {schema[key]}" for word, key in (("at least", least), ("at most", most)) if key in schema]
    return " and ".join(said)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


# Errors from invalid schemas and unusual values.
_ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# Depth from which on the shortest value is generated, so that recursive schemas end.
DEEP = 4
# Default bounds of numbers and lengths.
SPREAD = 10
MORE_ITEMS = 3
_WORDS = ("hello", "go north", "1", "a", "yes", "look around", "42")
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "http://example.com/",
    "uuid": "12345678-1234-4234-8234-123456789abc",
}


class NoValue(ValueError):
    """No value can be generated; the message has the part and the reason."""


class SchemaValues:
    """Generates values for a schema. The same seed gives the same values.

    Args:
        schema: A JSON Schema from pydantic.
        seed: Seed of the random numbers.
        skipped: Names of top-level properties that are left out unless they are required.
    """

    def __init__(self, schema: Schema, seed: int = 0, skipped: frozenset[str] = frozenset()):
        self._schema = schema
        self._definitions = schema.get("$defs", {})
        self._random = Random(seed)  # noqa: S311 - no secrets
        self._skipped = skipped
        self._parts = 0

    def value(self) -> Any:
        """Generates a value.

        Raises:
            NoValue: No value exists, or this class cannot generate one, or one that is not too large.
        """
        self._parts = 0
        try:
            found = self._value(self._schema, "", 0)
            required = self._schema.get("required", ())
            if isinstance(found, dict):
                return {name: part for name, part in found.items() if name in required or name not in self._skipped}
            return found
        except NoValue:
            raise
        except _ODD as error:
            raise NoValue(f"its schema cannot be read: {type(error).__name__}: {error}") from None

    def _value(self, schema: Any, place: str, depth: int) -> Any:
        if schema is True:
            schema = {"enum": _WORDS}
        if not isinstance(schema, Mapping):
            raise NoValue(f"no value is allowed at {place or 'the top'}")
        schema = self._merged(schema, place, depth)
        if "const" in schema:
            return schema["const"]
        for named in ("examples", "enum"):
            if schema.get(named):
                return self._random.choice(list(schema[named]))
        variants = schema.get("anyOf") or schema.get("oneOf")
        if variants:
            return self._variant(variants, place, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._random.choice([each for each in kind if each != "null"] or kind)
        if kind is None:
            is_object = "properties" in schema or "additionalProperties" in schema
            is_array = "items" in schema or "prefixItems" in schema
            kind = "object" if is_object else "array" if is_array else "string"
        make = getattr(self, f"_{kind}", None)
        if make is None:
            raise NoValue(f"{place or 'the action'} has type {kind!r}, for which no value can be generated")
        return make(schema, place, depth)

    def _merged(self, schema: Schema, place: str, depth: int) -> Schema:
        """The schema with all references and combined parts resolved."""
        if depth > 50:
            raise NoValue(f"{place or 'the action'} is infinitely recursive")
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise NoValue(f"the value is too large at {place or 'the top'}: it has more than {_MOST_PARTS:,} parts")
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name not in self._definitions:
                raise NoValue(f"{place or 'the action'} refers to {schema['$ref']}, which does not exist")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self._merged({**self._definitions[name], **rest}, place, depth + 1)
        if "allOf" in schema:
            merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                other = self._merged(part, place, depth + 1)
                joined = {**other, **merged}
                if "properties" in merged and "properties" in other:
                    joined["properties"] = {**other["properties"], **merged["properties"]}
                if "required" in merged and "required" in other:
                    joined["required"] = sorted({*merged["required"], *other["required"]})
                merged = joined
            return merged
        return schema

    def _variant(self, variants: list[Any], place: str, depth: int) -> Any:
        some = [each for each in variants if each != {"type": "null"}]
        if not some or (len(some) < len(variants) and (depth >= DEEP or self._random.random() < 0.2)):
            return None
        if depth >= DEEP:  # prefer a variant that contains no others
            plain = [each for each in some if isinstance(each, Mapping) and "$ref" not in each]
            some = plain or some
        return self._value(self._random.choice(some), place, depth + 1)

    def _null(self, schema: Schema, place: str, depth: int) -> None:
        return None

    def _boolean(self, schema: Schema, place: str, depth: int) -> bool:
        return self._random.random() < 0.5

    def _integer(self, schema: Schema, place: str, depth: int) -> int:
        low, high = _bounds(schema)
        least = math.ceil(low) + ("exclusiveMinimum" in schema and low == math.ceil(low))
        most = math.floor(high) - ("exclusiveMaximum" in schema and high == math.floor(high))
        step = int(schema.get("multipleOf", 1)) or 1
        first = -(-least // step)
        if first > most // step:
            raise NoValue(f"no integer is allowed at {place or 'the top'}")
        return self._random.randint(first, most // step) * step

    def _number(self, schema: Schema, place: str, depth: int) -> float:
        low, high = _bounds(schema)
        if low > high:
            raise NoValue(f"no number is allowed at {place or 'the top'}")
        if "multipleOf" in schema:
            step = float(schema["multipleOf"])
            return step * self._random.randint(math.ceil(low / step), math.floor(high / step))
        value = self._random.uniform(low, high)
        return round(value, 3) if low <= round(value, 3) <= high else value

    def _string(self, schema: Schema, place: str, depth: int) -> str:
        least = int(schema.get("minLength", 0))
        most = int(schema.get("maxLength", max(least, 40)))
        if least > _MOST_PARTS:
            raise NoValue(f"{place or 'the action'} has minLength {least}: more than {_MOST_PARTS:,} characters")
        if "pattern" in schema:
            try:
                return text_of(str(schema["pattern"]), self._random)
            except ValueError as error:
                raise NoValue(f"{place or 'the action'} has the pattern {schema['pattern']!r}: {error}") from None
        kind = schema.get("format")
        if kind in _FORMATS:
            return _FORMATS[kind]
        text = self._random.choice(_WORDS)
        if kind in {"binary", "base64", "base64url"} or "contentEncoding" in schema:
            text = base64.b64encode(text.encode()).decode()
        return text[:most].ljust(least, "a")

    def _array(self, schema: Schema, place: str, depth: int) -> list[Any]:
        first = schema.get("prefixItems", ())
        fixed = [self._value(part, f"{place}[{index}]", depth + 1) for index, part in enumerate(first)]
        least = max(int(schema.get("minItems", 0)) - len(fixed), 0)
        most = int(schema.get("maxItems", len(fixed) + least + MORE_ITEMS)) - len(fixed)
        items = schema.get("items", True)
        if items is False or most <= 0:
            return fixed
        count = least if depth >= DEEP else self._random.randint(least, max(least, min(most, least + MORE_ITEMS)))
        if not schema.get("uniqueItems"):
            return fixed + [self._value(items, f"{place}[]", depth + 1) for _ in range(count)]
        different: list[Any] = []
        for _ in range(20 * count):
            value = self._value(items, f"{place}[]", depth + 1)
            if value not in different and len(different) < count:
                different.append(value)
        return fixed + different

    def _object(self, schema: Schema, place: str, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made: dict[str, Any] = {}
        for name, part in schema.get("properties", {}).items():
            if name in required or (depth < DEEP and self._random.random() < 0.5):
                made[name] = self._value(part, f"{place}.{name}" if place else name, depth + 1)
        more = schema.get("additionalProperties", False)
        least = int(schema.get("minProperties", 0)) - len(made)
        if isinstance(more, Mapping) and depth < DEEP:
            least = max(least, self._random.randint(0, 1))
        for number in range(least):
            made[f"key{number}"] = self._value(more, f"{place}.key{number}", depth + 1)
        return made


def _bounds(schema: Schema) -> tuple[float, float]:
    """The smallest and the largest number. A missing bound is near the other one."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max(lows) if lows else None
    high = min(highs) if highs else None
    if low is None:
        low = min(0, high - SPREAD) if high is not None else 0
    if high is None:
        high = low + SPREAD
    return low, high
