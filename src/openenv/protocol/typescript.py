"""The types of an environment as a TypeScript module, from its JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .contract import PARTS
from .json_schema import Schema

_SCALARS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
# Types that need no parentheses before `[]`.
_SIMPLE = re.compile(r"[\w$]+(\[\])*", re.ASCII)
# Sent beside the observation.
_BESIDE = ("done", "reward")


def typescript_of(schemas: Mapping[str, Any], contract_hash: str) -> str:
    """Writes the types that a client in TypeScript sends and gets.

    Args:
        schemas: A valid JSON Schema for each of the `PARTS`, as pydantic writes them; a part may be absent.
        contract_hash: The hash of the contract, for the module's first line.

    Returns:
        A module with one declaration for each type, and the interface `Contract` with `action`, `observation` and
        `state`. A field of an action may be left out if it has a default, and every other value contains it. A part
        without a schema is `unknown`, or any object.
    """
    module = _Module()
    roots = {part: module.root(part, schemas.get(part)) for part in PARTS}
    fields = "".join(f"  {part}: {kind};\n" for part, kind in roots.items())
    head = (
        f"// Types of an environment, written by `openenv contract types`: do not edit. Contract {contract_hash}.\n"
    )
    contract = f"/** For `connect<Contract>(url)` of the npm package. */\nexport interface Contract {{\n{fields}}}\n"
    return "\n".join([head, *module.declarations.values(), contract])


class _Module:
    """The declarations of one module, by name."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._taken = {"Contract", "Uint8Array"}

    def root(self, part: str, schema: Any) -> str:
        """Declares the type of a part; returns its name."""
        if not isinstance(schema, Mapping) or not schema.keys() - {"$defs", "$comment"}:
            return "unknown" if part == "action" else "Record<string, unknown>"
        definitions = _Definitions(self, schema.get("$defs", {}), is_output=part != "action")
        root = {key: value for key, value in schema.items() if key != "$defs"}
        if part == "observation":
            root = definitions.without_beside(root)
        if "$ref" in root:
            return definitions.type_of(root)
        return definitions.declare(str(root.get("title") or part.title()), root)

    def name(self, wanted: str) -> str:
        """A free name like the wanted one."""
        plain = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "Type"
        plain = plain[0].upper() + plain[1:] if plain[0].isalpha() else f"_{plain}"  # reserved words are lower-case
        free = next(
            name for number in range(1, 10**6) if (name := plain + str(number) * (number > 1)) not in self._taken
        )
        self._taken.add(free)
        return free

    def known(self, key: str, wanted: str) -> tuple[str, bool]:
        """The name of a definition, and whether it is declared already.

        Args:
            key: Equal for definitions with equal declarations.
            wanted: Its name in the schema.
        """
        if key in self._names:
            return self._names[key], True
        self._names[key] = self.name(wanted)
        return self._names[key], False


class _Definitions:
    """The schemas of one part, as TypeScript."""

    def __init__(self, module: _Module, definitions: Mapping[str, Any], is_output: bool):
        self._module = module
        self._definitions = definitions
        self._is_output = is_output

    def declare(self, wanted: str, node: Mapping[str, Any], name: str | None = None) -> str:
        """Adds the declaration of a type to the module; returns its name."""
        name = name or self._module.name(wanted)
        self._module.declarations[name] = ""  # its place is before the types of its fields
        if node.get("type") == "object" and node.get("properties") and "anyOf" not in node and "oneOf" not in node:
            body = f"export interface {name} {{\n{''.join(self._fields(node, '  '))}}}\n"
        else:
            body = f"export type {name} = {self.type_of(node)};\n"
        self._module.declarations[name] = _comment(node, "", self._is_output) + body
        return name

    def without_beside(self, node: Mapping[str, Any]) -> Schema:
        """An observation, or its alternatives, without the fields that are sent beside it."""
        if "$ref" in node:
            node = self._target(node)
        for key in ("anyOf", "oneOf"):
            if key in node:
                return {**node, key: [self.without_beside(each) for each in node[key]]}
        if "properties" not in node:
            return dict(node)
        return {
            **node,
            "properties": {name: each for name, each in node["properties"].items() if name not in _BESIDE},
        }

    def type_of(self, node: Any) -> str:
        """A schema as a type in one line."""
        if not isinstance(node, Mapping):
            return "never" if node is False else "unknown"
        alternatives = node.get("anyOf", node.get("oneOf"))
        kind = node.get("type")
        if isinstance(kind, list):
            alternatives = [{**node, "type": each} for each in kind]
        if "$ref" in node:
            return self._named(node)
        if "const" in node or "enum" in node:
            return _union(json.dumps(each) for each in node.get("enum", [node.get("const")]))
        if alternatives is not None:
            return _union(self.type_of(each) for each in alternatives)
        if "allOf" in node:
            return " & ".join(f"({self.type_of(each)})" for each in node["allOf"])
        return self._plain(node, str(kind))

    def _plain(self, node: Mapping[str, Any], kind: str) -> str:
        if kind == "array":
            return self._list(node)
        if kind == "object":
            return self._map(node)
        return "Uint8Array" if (kind, node.get("format")) == ("string", "binary") else _SCALARS.get(kind, "unknown")

    def _named(self, node: Mapping[str, Any]) -> str:
        target, wanted = self._target(node), _name_of(node)
        # Equal definitions of several parts are declared once. A default makes a difference between those that
        # clients send and those that they get.
        closure = json.dumps(self._reachable(target, {}), sort_keys=True, default=repr)
        differs = self._is_output and '"default"' in closure
        name, is_declared = self._module.known(f"{wanted} {closure} {differs}", wanted)
        return name if is_declared else self.declare(wanted, target, name)

    def _target(self, node: Mapping[str, Any]) -> Schema:
        target = self._definitions[_name_of(node)]
        return dict(target) if isinstance(target, Mapping) else {}

    def _reachable(self, node: Any, found: dict[str, Any]) -> dict[str, Any]:
        """All definitions that a schema refers to, and itself under the empty name."""
        found.setdefault("", node)
        if isinstance(node, list):
            for each in node:
                self._reachable(each, found)
        elif isinstance(node, Mapping):
            ref = node.get("$ref")
            if isinstance(ref, str) and ref not in found:
                found[ref] = self._target(dict(node))
                self._reachable(found[ref], found)
            for each in node.values():
                self._reachable(each, found)
        return found

    def _list(self, node: Mapping[str, Any]) -> str:
        places = node.get("prefixItems", [] if node.get("maxItems") == 0 else None)
        if places is None:
            return _element(self.type_of(node.get("items", True))) + "[]"
        least = node.get("minItems", 0)
        kinds = [self.type_of(each) for each in places]
        items = [kind if place < least else f"{_element(kind)}?" for place, kind in enumerate(kinds)]
        if node.get("items") is not False and node.get("maxItems") != len(places):
            items.append(f"...{_element(self.type_of(node.get('items', True)))}[]")
        return f"[{', '.join(items)}]"

    def _map(self, node: Mapping[str, Any]) -> str:
        if node.get("properties"):
            return f"{{ {' '.join(line.strip() for line in self._fields(node, None))} }}"
        others = node.get("additionalProperties", True)
        if others is False and "patternProperties" not in node:
            return "Record<string, never>"
        values = node.get("patternProperties", {"": others}).values()
        value = _union(self.type_of(each) for each in values)
        names = node.get("propertyNames", {})
        if isinstance(names, Mapping) and ("$ref" in names or "enum" in names or "const" in names):
            return f"{{ [name in {self.type_of(names)}]?: {value} }}"
        return f"{{ [name: string]: {value} }}"

    def _fields(self, node: Mapping[str, Any], indent: str | None) -> Iterator[str]:
        """The fields of an object; without their descriptions if they are in one line."""
        required = node.get("required", ())
        for name, each in node["properties"].items():
            fields = each if isinstance(each, Mapping) else {}
            is_there = name in required or (self._is_output and "default" in fields)
            written = name if _IDENTIFIER.fullmatch(name) else json.dumps(name)
            comment = "" if indent is None else _comment(fields, indent, self._is_output)
            yield f"{comment}{indent or ''}{written}{'' if is_there else '?'}: {self.type_of(each)};\n"
        if node.get("additionalProperties", False) is not False or "patternProperties" in node:
            yield f"{indent or ''}[name: string]: unknown;\n"


def _name_of(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).removeprefix("#/$defs/")


def _union(kinds: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(kinds)) or "never"


def _element(kind: str) -> str:
    return kind if _SIMPLE.fullmatch(kind) else f"({kind})"


def _comment(node: Mapping[str, Any], indent: str, is_output: bool) -> str:
    """The description of a type or field, and its default if a client may leave it out."""
    lines = str(node.get("description", "")).strip().splitlines()
    if "default" in node and not is_output:
        lines.append(f"@default {json.dumps(node['default'], default=repr)}")
    lines = [line.replace("*/", "*\\/").rstrip() for line in lines]
    if len(lines) < 2:
        return f"{indent}/** {lines[0]} */\n" if lines else ""
    return "".join([f"{indent}/**\n", *(f"{indent} * {line}".rstrip() + "\n" for line in lines), f"{indent} */\n"])
