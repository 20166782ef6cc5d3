"""From a type to its JSON Schema, whatever the type."""

from __future__ import annotations

import logging
from traceback import format_exception_only
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ..log_once import warn_once
from .normal import OPAQUE, Schema

__all__ = ["schema_of"]

logger = logging.getLogger("openenv.contract")


class _Lenient(GenerateJsonSchema):
    """Where a type has no JSON Schema (an array of numpy, a callable), anything goes."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Choices without a schema, and defaults that cannot be written, are left out in silence."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return dict(OPAQUE)


def schema_of(kind: Any) -> Schema | None:
    """The JSON Schema of a type.

    Args:
        kind: A model, or whatever pydantic validates; or a `TypeAdapter` of it.

    Returns:
        The schema. Parts of the type that have none are `{"$comment": "opaque"}`, which accepts anything; None
        stands for a type without any.
    """
    try:
        adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return adapter.json_schema(schema_generator=_Lenient)
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: types bring their own schema functions
        name = getattr(kind, "__qualname__", repr(kind))
        (fault,) = format_exception_only(error)[-1:]
        warn_once(logger, "%s has no JSON Schema, so that nothing is checked against it: %s", name, fault.strip())
        return None
