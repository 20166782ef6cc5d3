"""Generate values that a JSON Schema allows, and find the place where a value violates one."""

from __future__ import annotations

import base64
import math
import re
import string
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
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


def text_of(pattern: str, random: Random) -> str:
    """A string that matches a pattern.

    Raises:
        ValueError: The pattern is invalid, or has parts (such as lookahead) that this function does not support.
    """
    try:
        with warnings.catch_warnings():  # about future meanings of the pattern
            warnings.simplefilter("ignore", FutureWarning)
            tree, wanted = _parse(pattern), re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(f"it is not a regular expression of Python: {error}") from None
    for _ in range(ATTEMPTS):
        text = _sequence(tree, random)
        if wanted.search(text):
            return text
    raise ValueError("no matching string was found")


def _sequence(tree: Any, random: Random) -> str:
    return "".join(_part(str(operation), argument, random) for operation, argument in tree)


def _part(operation: str, argument: Any, random: Random) -> str:  # noqa: PLR0911 - one line a kind
    match operation:
        case "LITERAL":
            return chr(argument)
        case "ANY":
            return random.choice(string.ascii_letters)
        case "NOT_LITERAL":
            return random.choice([letter for letter in _ALPHABET if ord(letter) != argument])
        case "IN":
            return random.choice(_choices(argument))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, tree = argument
            count = random.randint(least, min(int(most), least + MORE_REPEATS))
            return "".join(_sequence(tree, random) for _ in range(count))
        case "SUBPATTERN":
            return _sequence(argument[3], random)
        case "ATOMIC_GROUP":
            return _sequence(argument, random)
        case "BRANCH":
            return _sequence(random.choice(argument[1]), random)
        case "AT":
            return ""
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

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
# The library's messages about these name the properties, and not the whole object.
_OF_PROPERTIES = ("required", "dependentRequired", "additionalProperties", "unevaluatedProperties")


def first_fault(value: Any, schema: Schema, place: str) -> str | None:
    """The first fault of a value, as text. None if the value matches the schema, or if the schema is not valid.

    Args:
        value: The value from JSON, or from msgpack, which has bytes.
        schema: The schema, with its `$defs`.
        place: The name of the value: `observation`.
    """
    from jsonschema.exceptions import best_match
    from referencing import Registry

    try:
        with warnings.catch_warnings():  # about future meanings of patterns
            warnings.simplefilter("ignore", FutureWarning)
            # An empty registry: a reference to another document must not be fetched.
            validator = _validator_class()(without_patterns(schema, _is_valid), registry=Registry())
            fault = best_match(islice(validator.iter_errors(value), 1))
    except Exception:  # noqa: BLE001 - the library's errors about invalid schemas have no common class
        return None
    if fault is None:
        return None
    place += fault.json_path.removeprefix("$")
    if fault.validator in _OF_PROPERTIES:
        return f"{place}: {fault.message}"
    if fault.validator is None:
        return f"{place} is {_shown(fault.instance)}, but its schema allows no value"
    found = f"has length {len(fault.instance)}" if fault.validator in _LENGTHS else f"is {_shown(fault.instance)}"
    return f"{place} {found}, but its schema has {fault.validator} {_shown(fault.validator_value)}"


def undeclared(value: Any, schema: Schema) -> list[str]:
    """Fields of an object that its schema does not declare, even if it allows them."""
    if "$ref" in schema:
        schema = schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    properties = schema.get("properties")
    return (
        [] if properties is None or not isinstance(value, dict) else [key for key in value if key not in properties]
    )


def without_patterns(schema: Any, kept: Callable[[str], bool] = lambda pattern: False) -> Any:
    """A schema without its regular expressions, except those that `kept` accepts."""
    if isinstance(schema, list):
        return [without_patterns(each, kept) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {name: without_patterns(each, kept) for name, each in schema.items()}
    # Properties may have the names of keywords. Their values are schemas, not strings.
    if isinstance(schema.get("pattern"), str) and not kept(schema["pattern"]):
        del rest["pattern"]
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and "type" in schema and not all(map(kept, patterns)):
        del rest["patternProperties"]
        rest.pop("additionalProperties", None)
    return rest


def _is_valid(pattern: str) -> bool:
    """Whether Python can read a pattern: other dialects exist."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    return True


@cache
def _validator_class() -> Any:
    """The validator of JSON Schema 2020-12, except where it refuses values that pydantic accepts."""
    import jsonschema

    standard = jsonschema.Draft202012Validator

    def unless(exempt: Callable[[Any, Schema], bool], keyword: str) -> Callable[..., Any]:
        check = standard.VALIDATORS[keyword]
        return lambda validator, wanted, value, schema: (
            () if exempt(value, schema) else check(validator, wanted, value, schema)
        )

    def items(validator: Any, wanted: Any, value: Any, schema: Schema) -> Iterator[Any]:
        """The library prepares the schema for each item; this does once for a list, which can have 100,000."""
        if isinstance(value, list):
            of_item = validator.evolve(schema=wanted)
            for index in range(len(schema.get("prefixItems", ())), len(value)):
                for fault in of_item.iter_errors(value[index]):
                    fault.path.appendleft(index)
                    yield fault

    return jsonschema.validators.extend(
        standard,
        {
            "items": items,
            # msgpack carries bytes as they are; their schema is that of JSON, which has none.
            "type": unless(
                lambda value, schema: isinstance(value, bytes) and schema.get("format") in {"binary", "base64url"},
                "type",
            ),
            **{
                keyword: unless(lambda value, _: isinstance(value, float) and not math.isfinite(value), keyword)
                for keyword in _BOUNDS
            },
            "multipleOf": None,  # 0.3 is a multiple of 0.1 for pydantic, which allows for rounding
            "oneOf": standard.VALIDATORS["anyOf"],  # of a tagged union, whose variants may overlap
        },
    )


def _shown(value: Any) -> str:
    text = repr(value)
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

    def value(self) -> Any:
        """Generates a value.

        Raises:
            NoValue: No value exists, or this class cannot generate one.
        """
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
        if schema is True or schema == {}:
            return self._random.choice(_WORDS)
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
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name not in self._definitions:
                raise NoValue(f"{place or 'the action'} refers to {schema['$ref']}, which does not exist")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self._merged({**self._definitions[name], **rest}, place, depth + 1)
        if "allOf" in schema:
            merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged = _joined(merged, self._merged(part, place, depth + 1))
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


def _joined(one: Schema, other: Schema) -> dict[str, Any]:
    joined = {**other, **one}
    if "properties" in one and "properties" in other:
        joined["properties"] = {**other["properties"], **one["properties"]}
    if "required" in one and "required" in other:
        joined["required"] = sorted({*one["required"], *other["required"]})
    return joined
