"""Rewrite the generated parts of `docs/protocol.md`, and `docs/protocol.schema.json`, from the message types.

`python scripts/protocol_tables.py` runs it. A test checks that both files are current.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openenv import errors
from openenv.protocol.arrays import ELEMENT_SIZES
from openenv.protocol.messages import (
    CALLS,
    EVENTS,
    OPS,
    REPLIES,
    BatchFacts,
    ErrorFacts,
    FailureReply,
    Op,
    SchemaHashes,
    ServerLimits,
    SharedMemoryOffer,
    SlotUsage,
)

DOCS = Path(__file__).parent.parent / "docs"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Schema = dict[str, Any]


def definitions() -> dict[str, Schema]:
    """A JSON Schema for each message type."""
    replies = list(dict.fromkeys(REPLIES.values()))
    types = [*OPS.values(), *replies, FailureReply, *EVENTS.values()]
    _, found = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for cls in OPS.values():
        _make_request(found[cls.__name__])
    for cls in replies:
        found[cls.__name__]["properties"]["ok"] = {"const": True}
    calls = []
    for cls in CALLS.values():
        call = json.loads(json.dumps(found[cls.__name__]))
        call["title"] += "Call"
        del call["properties"]["id"], call["properties"]["copied"]
        call["required"].remove("id")
        found[call["title"]] = call
        calls.append({"$ref": f"#/$defs/{call['title']}"})
    found["BatchOp"]["properties"]["calls"]["items"] = {"oneOf": calls}
    for schema in found.values():
        if "description" in schema:  # a docstring, which Python before 3.13 keeps indented
            schema["description"] = inspect.cleandoc(schema["description"])
    return found


def _make_request(schema: Schema) -> None:
    del schema["properties"]["id"]["default"]  # only the calls of a batch have no id
    schema["required"] = ["id", *schema["required"]]
    session = schema["properties"].get("session", {})
    for variant in session.get("anyOf", ()):
        if "pattern" in variant:
            variant["pattern"] = variant["pattern"].replace(r"\Z", "$")  # the end of the text in JSON Schema


def schema() -> str:
    """The text of `docs/protocol.schema.json`."""
    found = definitions()
    server = [*dict.fromkeys(cls.__name__ for cls in REPLIES.values()), "FailureReply"]
    server += [cls.__name__ for cls in EVENTS.values()]
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "openenv protocol v2",
        "description": "One frame: of a client (ClientMessage) or of a server (ServerMessage). See protocol.md.",
        "anyOf": [{"$ref": "#/$defs/ClientMessage"}, {"$ref": "#/$defs/ServerMessage"}],
        "$defs": {
            "ClientMessage": {"oneOf": [{"$ref": f"#/$defs/{cls.__name__}"} for cls in OPS.values()]},
            "ServerMessage": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in server]},
            **found,
        },
    }
    return json.dumps(document, indent=2) + "\n"


def page(text: str) -> str:
    """The specification with new generated parts.

    Args:
        text: The specification with old ones.
    """
    found = definitions()
    parts = {
        "ops": _ops(),
        "requests": _sections(OPS, found, skip={"op", "id", "copied"}),
        "replies": _sections(REPLIES, found, skip={"id", "ok"}),
        "events": _sections(EVENTS, found, skip={"event"}),
        "limits": _fields(found[ServerLimits.__name__], skip=set()),
        "hashes": _fields(found[SchemaHashes.__name__], skip=set()),
        "memory": _fields(found[SharedMemoryOffer.__name__], skip=set()),
        "batch": _fields(found[BatchFacts.__name__], skip=set()),
        "slot": _fields(found[SlotUsage.__name__], skip=set()),
        "fault": _fields(found[ErrorFacts.__name__], skip=set()),
        "errors": _errors(),
        "elements": _elements(),
    }
    return _PART.sub(lambda match: f"{match[1]}{parts[match[2]]}\n{match[3]}", text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ops() -> str:
    rows = [
        (f"`{op}`", inspect.getdoc(cls).partition("\n")[0], "yes" if op in CALLS else "", _names(REPLIES[op]))
        for op, cls in OPS.items()
    ]
    return _table(("op", "what it does", "in a batch", "reply holds"), rows)


def _names(cls: type[msgspec.Struct]) -> str:
    names = [name for name in cls.__struct_fields__ if name not in {"id", "ok"}]
    return ", ".join(f"`{name}`" for name in names) or "nothing more"


def _sections(
    types: Mapping[str, type[Op] | type[msgspec.Struct]], found: Mapping[str, Schema], skip: set[str]
) -> str:
    parts: list[str] = []
    for name, cls in types.items():
        fields = _fields(found[cls.__name__], skip) if set(found[cls.__name__]["properties"]) - skip else ""
        parts.append(
            f"**`{name}`**: {inspect.getdoc(cls).partition(chr(10))[0]}" + (f"\n\n{fields}" if fields else "")
        )
    return "\n\n".join(parts)


def _fields(schema: Schema, skip: set[str]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (f"`{name}`", _kind(field), "yes" if name in required else "", _meaning(field))
        for name, field in schema["properties"].items()
        if name not in skip
    ]
    return _table(("field", "type", "required", "meaning"), rows)


def _variants(field: Schema) -> list[Schema]:
    return field.get("anyOf", [field])


def _meaning(field: Schema) -> str:
    return next((each["description"] for each in [field, *_variants(field)] if "description" in each), "")


_KINDS = {"object": "map", "array": "list", "string": "text", "boolean": "bool", "number": "float"}


def _kind(field: Schema) -> str:
    return " or ".join(dict.fromkeys(map(_one_kind, _variants(field))))


def _one_kind(field: Schema) -> str:
    if "$ref" in field:
        return f"map ({field['$ref'].rpartition('/')[2].lower()})"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    kind = _KINDS.get(field.get("type", "any"), field.get("type", "any"))
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "minItems": "length >="}
    said = [f"{sign} {_number(field[name])}" for name, sign in bounds.items() if name in field]
    return f"{kind} {', '.join(said)}" if said else kind


def _number(value: float) -> str:
    return "2^63 - 1" if value == 2**63 - 1 else str(value)


def _errors() -> str:
    classes = [getattr(errors, name) for name in errors.__all__]
    found = dict.fromkeys(cls for cls in classes if isinstance(cls, type) and issubclass(cls, errors.OpenEnvError))
    rows = [
        (f"`{cls.__name__}`", f"`{cls.code}`", cls.blame, "yes" if cls.retryable else "", _first_line(cls))
        for cls in sorted(found, key=lambda cls: cls.__name__)
    ]
    return _table(("error", "code", "blame", "retryable", "meaning"), rows)


def _first_line(cls: type) -> str:
    return inspect.getdoc(cls).partition("\n")[0]


def _elements() -> str:
    return _table(
        ("`dtype`", "bytes"), [(f"`{name}`".replace("|", "\\|"), str(size)) for name, size in ELEMENT_SIZES.items()]
    )


def main() -> None:
    specification = DOCS / "protocol.md"
    specification.write_text(page(specification.read_text()))
    (DOCS / "protocol.schema.json").write_text(schema())


if __name__ == "__main__":
    main()
