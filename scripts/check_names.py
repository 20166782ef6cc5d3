"""Check names of classes and modules in src/openenv: one noun for one thing, and the nouns of the field.

    python scripts/check_names.py [folder of the package]

Exits with 1 and a line for each name that breaks a rule. `make check` runs it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src/openenv"

# Files of the environments that `openenv init` writes. Several of them contain the same classes.
TEMPLATES = Path("project/templates")

# Words that a reader of other projects cannot search for. The glossary in ARCHITECTURE.md has the nouns of the field.
_ALLEGORIES = """
    landlord seat seating stay stays guest guestbook loan porter guard visitor reception attendance discretion
    introduction entrance door room
    road lanes way errand born home homed hosting
    ensemble wave solos
    nursery ward zygote offshoot sibling orphan
    janitor tidy farewell tether pace secrecy one_by_one
    ask taker pulse words site census life sessionholder linkedsession loss agreement redial fleet inquiry
    grace truth conduct remains doubt cannottell
"""
ALLEGORIES = frozenset(_ALLEGORIES.split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, nargs="?", default=PACKAGE)
    findings = list(check(parser.parse_args().package))
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


def check(package: Path) -> Iterator[str]:
    """Yields a line for each name in the folder of a package that breaks a rule."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if relative.is_relative_to(TEMPLATES):
            continue
        if _is_allegory(path.stem):
            yield f"{relative}: the name of this module is no noun of the field"
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{relative}:{node.lineno}")
    for name, found in places.items():
        if _is_allegory(name):
            yield f"{found[0]}: {name} is no noun of the field"
        if len(found) > 1:
            yield f"{', '.join(found)}: more than one class is called {name}"


def _is_allegory(name: str) -> bool:
    return name.strip("_").lower() in ALLEGORIES


if __name__ == "__main__":
    sys.exit(main())
