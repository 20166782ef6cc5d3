"""Compares the public names of the released package with ours, and prints what differs as JSON.

    python -m tests.dropin.comparison SURVEY [FOLDER]

SURVEY is what `peer_scripts/public_names.py` has printed. FOLDER has packages that ours does not install (Gradio).

A difference is what a caller or a subclass in existing code can meet. Ours may have more: modules, names, members,
parameters that no call of theirs reaches, and a default where theirs has none.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .peer_scripts.public_names import facts, shape

__all__ = ["differences"]

READABLE = {"attribute", "field", "property", "value"}
POSITIONAL = {"positional-only", "positional or keyword"}
MISSING = object()


def differences(survey: Mapping[str, Any]) -> list[str]:
    """All differences, each as `path: difference`.

    The modules of a missing package are not named. What a class inherits is named with the class that has it.
    """
    modules, objects = survey["modules"], survey["objects"]
    lines, homes, paths = [], {}, {}
    for name, entry in modules.items():
        module = _module(name)
        lines += list(_of_module(name, module, entry))
        for each, home in entry.get("names", {}).items() if module is not None else ():
            path, ours = f"{name}.{each}", getattr(module, each, MISSING)
            if ours is MISSING:
                lines.append(f"{path}: missing")
            elif path != home and _is_listed(modules, home):
                lines += [f"{path}: is {home} there"] * (_resolved(home) not in {ours, MISSING})
            elif home not in homes:
                paths[home] = path
                homes[home] = {member: list(found) for member, found in _compared(objects[home], ours)}
    for home, members in homes.items():
        for member, found in members.items():
            owner = objects[home][member].get("owner")
            inherited = homes.get(owner, {}).get(member, []) if owner != home else []
            lines += [f"{paths[home]}{'.' * bool(member)}{member}{each}" for each in found if each not in inherited]
    return sorted(lines)


def _module(name: str) -> Any:
    """Our module of a name; None if there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _of_module(name: str, module: Any, entry: Mapping[str, Any]) -> Iterator[str]:
    parent = name.rpartition(".")[0]
    if module is None:
        if not parent or _module(parent) is not None:
            yield f"{name}: the module is missing"
    elif "same as" in entry and module is not _module(entry["same as"]):
        yield f"{name}: is {entry['same as']} there"
    elif "error" in entry:
        yield f"{name}: cannot be imported there ({entry['error']})"


def _is_listed(modules: Mapping[str, Any], home: str) -> bool:
    module, _, name = home.rpartition(".")
    return name in modules.get(module, {}).get("names", ())


def _resolved(home: str) -> Any:
    module, _, name = home.rpartition(".")
    return getattr(_module(module), name, MISSING)


def _compared(theirs: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Iterator[str]]]:
    """For each member of an object, and for the object itself, what differs."""
    ours = facts(value)
    for name, fact in theirs.items():
        if name in ours:
            yield name, _different(name, fact, ours[name])
        elif hasattr(value, name):  # from a base that is not ours: its signature is Python's or pydantic's
            inherited = shape(inspect.getattr_static(value, name))
            yield name, _different(name, fact, inherited | {"parameters": fact.get("parameters")})
        elif theirs[""]["kind"] == ours[""]["kind"]:
            yield name, iter([": missing"])


def _different(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    kind, as_kind = theirs["kind"], ours["kind"]
    if as_kind == "property" and not ours["writable"] and (kind == "attribute" or theirs.get("writable")):
        yield ": can be set there, read only here"
    if kind != as_kind:
        if kind not in {"attribute", "property"} or as_kind not in READABLE:
            yield f": {kind} there, {as_kind} here"
        return
    for base in sorted({*theirs.get("bases", ())} - {*ours.get("bases", ())}):
        yield f": no {base} here"
    for each in ("value", "schema", "alias", "asynchronous"):
        if theirs.get(each) != ours.get(each):
            yield f": {each} {theirs.get(each)} there, {ours.get(each)} here"
    if ours.get("abstract") and not theirs.get("abstract"):
        yield ": abstract here"
    if theirs.get("default", "required") not in {"required", ours.get("default")}:
        yield f": default {theirs['default']} there, {ours['default']} here"
    if theirs.get("parameters") is not None and not name.startswith("__"):  # Python calls those, by position
        yield from _parameters(theirs["parameters"], ours["parameters"])


def _parameters(theirs: list[list[str]], ours: list[list[str]] | None) -> Iterator[str]:
    if ours is None:
        yield "(): its parameters cannot be read here"
        return
    here = {name: (position, kind, default) for position, (name, kind, default) in enumerate(ours)}
    for position, (name, kind, default) in enumerate(theirs):
        if kind.startswith("variadic"):
            if kind not in {each for _, each, _ in ours}:
                yield f"({name}): no {kind} parameters here"
        elif name in here:
            yield from _parameter(name, (position, kind, default), here.pop(name))
        else:
            yield f"({name}): missing"
    for name, (_, kind, default) in here.items():
        if not default and not kind.startswith("variadic"):
            yield f"({name}): required here, unknown there"


def _parameter(name: str, theirs: tuple[int, str, str], ours: tuple[int, str, str]) -> Iterator[str]:
    position, kind, default = theirs
    at, as_kind, as_default = ours
    if as_kind not in {kind, "positional or keyword"}:
        yield f"({name}): {kind} there, {as_kind} here"
    elif kind in POSITIONAL and at != position:
        yield f"({name}): argument {position} there, {at} here"
    if default not in {"", as_default}:
        yield f"({name}): default {default} there, {as_default or 'none'} here"


if __name__ == "__main__":
    sys.path += sys.argv[2:]
    json.dump(differences(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), sys.stdout)
