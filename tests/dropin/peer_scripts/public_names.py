"""Reads the public names of the installed openenv and prints them as JSON.

    python public_names.py [MODULE...]

The modules that are named, and those in them, are listed and not read. This runs in the virtual environment of the
released package, so it uses the standard library and pydantic alone.

A name is public if no part of its path begins with an underscore. A module's names are those that it defines and
those that it imports from public modules of the package; what it imports from elsewhere (`Any`, `json`) is not part
of it. An abstract member counts even with an underscore, and so do special methods.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import re
import sys
import textwrap
import time
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, PydanticUserError, TypeAdapter

PACKAGES = ("openenv", "openenv_core")
SPECIAL = {
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__await__", "__call__", "__getattr__"),
    *("__contains__", "__getitem__", "__iter__", "__len__", "__setitem__"),
}
# A class is one of these for Python's sake, and no caller asks.
FORMAL = {"object", "ABC", "Generic", "Protocol"}
OPTIONS = ("extra", "frozen", "validate_assignment", "arbitrary_types_allowed", "populate_by_name")
OF_PYDANTIC = {"model_computed_fields", "model_config", "model_fields", "model_post_init"}
# What of a JSON schema is told elsewhere, or only for people.
WORDS = {"description", "title", "examples", "default"}

# A text that is longer, or has lines, is written for people or for a page: its words are not compared.
LONGEST = 100

# The kind of a thing, and by the kind its parameters, value, default and so on.
Fact = dict[str, Any]


def survey(skipped: Iterable[str] = ()) -> dict[str, Any]:
    """All public names of the installed package.

    Returns:
        `modules`: for each its `names` with the path at which each was defined, or `same as` of which other module it
        is, or the `error` that importing it raised. `objects`: for each of those paths the `facts`.
    """
    modules: dict[str, Any] = {}
    objects: dict[str, dict[str, Fact]] = {}
    for name in _modules():
        if any(name == each or name.startswith(f"{each}.") for each in skipped):
            modules[name] = {}
            continue
        try:
            module = importlib.import_module(name)
        except (ImportError, NameError) as error:  # for want of an extra, or of a name in a template
            modules[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        if module.__name__ != name:
            modules[name] = {"same as": module.__name__}
            continue
        names = modules[name] = {"names": {}}
        for each in _names(module):
            value = getattr(module, each)
            home = names["names"][each] = _home(value) or f"{name}.{each}"
            if home not in objects:
                objects[home] = facts(value)
    return {"modules": modules, "objects": objects}


def facts(value: Any) -> dict[str, Fact]:
    """What an object is, under the empty name, and of a class what each of its members is."""
    if not inspect.isclass(value):
        return {"": shape(value)}
    about: Fact = {"kind": "class", "bases": sorted({base.__name__ for base in value.__mro__[1:]} - FORMAL)}
    if issubclass(value, enum.Enum):
        found = {each.name: {"kind": "value", "value": repr(each.value)} for each in value}
        return {"": about, "str()": {"kind": "value", "value": str(next(iter(value)))}, **found}
    if issubclass(value, BaseModel):
        return {**_members(value), **_fields(value), "": about}
    maker = next(base for base in value.__mro__ if "__init__" in vars(base) or base is object)
    return {**_members(value), "": about | {"parameters": _parameters(value), "owner": _home(maker)}}


def shape(value: Any) -> Fact:
    """What one thing is."""
    if isinstance(value, classmethod | staticmethod):
        return shape(value.__func__) | {"kind": type(value).__name__}
    if isinstance(value, property):
        return {"kind": "property", "writable": value.fset is not None}
    if inspect.isclass(value) or inspect.ismodule(value):
        return {"kind": "class" if inspect.isclass(value) else "module"}
    if inspect.isroutine(value):
        asynchronous = inspect.iscoroutinefunction(value)
        return {"kind": "function", "asynchronous": asynchronous, "parameters": _parameters(value)}
    if type(value).__module__ in {"typing", "types"} and not isinstance(value, TypeVar):
        return {"kind": "type", "value": _plain(TypeAdapter(value).json_schema())}
    return {"kind": "value", "value": _text(value)}


def _modules() -> list[str]:
    """The public modules, as files and aliases name them."""
    found = []
    for package in PACKAGES:
        root = Path(importlib.import_module(package).__file__ or "").parent
        for path in root.rglob("*.py"):
            parts = [package, *path.relative_to(root).with_suffix("").parts]
            found.append(parts[:-1] if parts[-1] == "__init__" else parts)
    names = {".".join(parts) for parts in found if not any(part.startswith("_") for part in parts)}
    return sorted({*names, *(name for name in sys.modules if name.startswith("openenv_core."))})


def _names(module: types.ModuleType) -> list[str]:
    """The public names of a module."""
    found = set(getattr(module, "__all__", ()))
    for node in _statements(ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {each.id for target in _targets(node) for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and _is_own(node):
            found |= {alias.asname or alias.name for alias in node.names}
    return sorted(name for name in found if name != "*" and not name.startswith("_") and hasattr(module, name))


def _is_own(node: ast.ImportFrom) -> bool:
    """Whether an import is of a public module of the package itself."""
    parts = (node.module or "").split(".")
    return (node.level > 0 or parts[0] in PACKAGES) and not any(part.startswith("_") for part in parts)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that a module runs, without those that only a type checker reads."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _statements(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            for part in ("body", "handlers", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, ()))


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _home(value: Any) -> str | None:
    """Where an object says that it was defined, if that is in the package."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.split(".")[0] not in PACKAGES:
        return None
    return f"{module}.{name}"


def _fields(cls: type[BaseModel]) -> dict[str, Fact]:
    """The fields of a model, with types and limits as its JSON schema tells them, and its options."""
    try:
        schemas = cls.model_json_schema().get("properties", {})
    except PydanticUserError:  # JSON has no such types
        schemas = {}
    found: dict[str, Fact] = {}
    for name, field in cls.model_fields.items():
        default = "required" if field.is_required() else _text(field.get_default(call_default_factory=True))
        if field.default_factory is time.time:
            default = "now"
        schema = _plain(schemas.get(field.alias or name, {}))
        found[name] = {"kind": "field", "default": default, "schema": schema, "alias": field.alias}
    for option in OPTIONS:
        found[f"model_config[{option}]"] = {"kind": "value", "value": _text(cls.model_config.get(option))}
    return found


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _plain(each) for name, each in schema.items() if name not in WORDS}


def _members(cls: type) -> dict[str, Fact]:
    """The members that the package gives a class, and the attributes that its methods set."""
    found: dict[str, Fact] = {}
    abstract = getattr(cls, "__abstractmethods__", frozenset())
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] in PACKAGES]
    of_instances = {*getattr(cls, "__dataclass_fields__", ()), *(slot for base in own for slot in _slots(base))}
    for base in own:
        for name, value in vars(base).items():
            public = not name.startswith("_") or name in SPECIAL or name in abstract
            if public and name not in {*found, *of_instances, *OF_PYDANTIC}:
                found[name] = shape(value) | {"abstract": name in abstract, "owner": _home(base)}
        for name in (*_set_by_methods(base), *inspect.get_annotations(base), *_slots(base)):
            if not name.startswith("_"):
                found.setdefault(name, {"kind": "attribute", "owner": _home(base)})
    return found


def _slots(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _set_by_methods(cls: type) -> list[str]:
    """The attributes of `self` that methods of a class assign."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return []
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [each for node in assigned for each in _targets(node)]
    return [each.attr for each in targets if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"]


def _parameters(value: Any) -> list[list[str]] | None:
    """Name, kind and default of each parameter; None where Python does not know them."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [
        [each.name, each.kind.description, "" if each.default is each.empty else _text(each.default)]
        for each in signature.parameters.values()
    ]


def _text(value: Any) -> str:
    """A value as text that does not depend on the module of its class, nor on the order of a set."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, TypeVar):
        return f"a type variable bound to {_text(value.__bound__)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST and "\n" not in value else "a long text"
    return _repr(value)


def _repr(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if type(value).__repr__ is object.__repr__:
        return f"a {type(value).__name__}"
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", repr(value))


def _stand_in(module: str, *classes: str) -> None:
    """Takes the place of a package that an extra installs: without it, names of the released package are None."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        made = types.ModuleType(module)
        vars(made).update({name: type(name, (), {}) for name in classes})
        sys.modules[module] = made


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _stand_in("smolagents", "LocalPythonExecutor")
    json.dump(survey(sys.argv[1:]), sys.stdout)
