"""Fields that hold arrays: their element type, shape and bounds, as the annotation `Array`."""

from __future__ import annotations

import functools
import sys
from typing import Annotated, Any

import numpy as np
from annotated_types import Predicate
from numpy.typing import NDArray
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .errors import InvalidArgument
from .images import Encoding, check_encoding, decode_pixels, encode_pixels
from .protocol.arrays import ELEMENT_SIZES, ArrayDeclaration, is_array, is_tensor, list_of, to_numpy

__all__ = ["Array"]

# A schema that lists the bounds of each of more elements would be unreadable.
LISTED_ELEMENTS = 64
KEYWORD = "x-array"
"""Keyword with the element type and the shape, in the JSON Schema of a field."""


class Array(ArrayDeclaration):
    """The annotation of a field that holds an array::

        class Camera(Observation):
            image: Annotated[np.ndarray, Array("uint8", (84, 84, 4))]
            pose: Annotated[torch.Tensor, Array("float32", (7,), low=-1, high=1)]

    The field is an array on both sides. Protocol v2 in msgpack sends the bytes of its elements, JSON nested lists.
    An environment may assign any array, since observations are sent without another check. A value from the other
    side must have the declared shape. Its elements may have another type of the same kind, if none of them changes by
    more than rounding: `int64` for `int32`, but not `float64` for `int64`.

    Args:
        dtype: Type of the elements: a bool, integer or float type of a fixed size; `bfloat16` for tensors.
        shape: Length of each axis; None for any length.
        low: Lower bound of the elements, a number or an array of this shape; None: not checked. With a bound, NaN is
            refused.
        high: Upper bound, as `low`.
        encoding: `png`, `jpeg` or `webp`, for an image: `uint8` of shape (height, width) or (height, width, 1, 3 or
            4). Observations and states then have the image file where msgpack has the elements of other arrays. PNG
            and WebP keep every pixel; JPEG changes pixels, and has no fourth channel.

    Raises:
        InvalidArgument: The type cannot be sent, a length is negative, the bounds do not have this shape, or no image
            of this encoding has this type and shape.
        MissingExtra: There is an encoding, and Pillow is not installed.
    """

    def __init__(
        self,
        dtype: Any,
        shape: tuple[int | None, ...] = (),
        low: Any = None,
        high: Any = None,
        encoding: Encoding | None = None,
    ):
        self.is_bfloat16 = dtype == "bfloat16"
        # Elements of bfloat16 are checked as float32, which has all of its values.
        try:
            self.dtype: np.dtype[Any] = np.dtype("float32" if self.is_bfloat16 else dtype).newbyteorder("=")
        except TypeError as error:
            raise InvalidArgument(f"Array({dtype!r}): {error}") from error
        self.shape = tuple(shape)
        lengths = tuple(length for length in self.shape if length is not None)
        self._fixed_shape = lengths if len(lengths) == len(self.shape) else None
        if self.dtype.newbyteorder("<").str not in ELEMENT_SIZES or self.dtype.kind == "c":
            raise InvalidArgument(f"Array({dtype!r}): the elements must be bools, integers or floats up to 64 bits")
        if not all(length is None or (type(length) is int and length >= 0) for length in self.shape):
            raise InvalidArgument(f"Array(shape={shape!r}): each length must be at least 0, or None for any length")
        self.low, self.high = self._bound(low, "low"), self._bound(high, "high")
        if self.low is not None and self.high is not None and not (self.low <= self.high).all():
            raise InvalidArgument("Array(low=..., high=...): a lower bound is above the upper one, so no value fits")
        self.encoding: Encoding | None = encoding
        if encoding is not None:
            check_encoding(encoding, self.name, self.shape)

    @property
    def name(self) -> str:
        """The name of the element type."""
        return "bfloat16" if self.is_bfloat16 else self.dtype.name

    def __repr__(self) -> str:
        return f"Array({self.name!r}, {self.shape})"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_tensor = str(getattr(source, "__module__", "")).partition(".")[0] == "torch"
        if self.is_bfloat16 and not as_tensor:
            raise InvalidArgument("Array('bfloat16') needs the type torch.Tensor: numpy has no such elements")
        listed = handler.generate_schema(self._listed_type())
        return core_schema.no_info_wrap_validator_function(
            functools.partial(self._validate, as_tensor),
            listed,
            serialization=core_schema.plain_serializer_function_ser_schema(_as_lists, info_arg=True),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema["schema"])  # the nested lists, also for a serializer
        facts = {"dtype": self.name, "shape": list(self.shape)}
        if self.encoding is not None:
            facts["encoding"] = self.encoding
        handler.resolve_ref_schema(described)[KEYWORD] = facts
        return described

    def compressed(self, value: Any) -> Any:
        if not is_array(value) or self.encoding is None:
            return value
        return encode_pixels(self._checked(to_numpy(value)), self.encoding)

    def _bound(self, bound: Any, name: str) -> NDArray[Any] | None:
        if bound is None:
            return None
        given = np.asarray(bound)
        with np.errstate(all="ignore"):
            array = given.astype(self.dtype)
        if self.dtype.kind != "f" and (array != given).any():
            raise InvalidArgument(f"Array({name}={bound!r:.50}): a bound must be an element of {self.name}")
        if array.ndim and array.shape != self._fixed_shape:
            raise InvalidArgument(f"Array({name}=...) has shape {array.shape}: give a number, or shape {self.shape}")
        return array if self._fixed_shape is None else np.broadcast_to(array, self._fixed_shape)

    def _validate(self, as_tensor: bool, value: Any, listed: Any) -> Any:
        if isinstance(value, bytes):
            array = self._decompressed(value)
        elif is_array(value) or isinstance(value, np.generic):
            array = self._checked(np.asarray(value) if isinstance(value, np.generic) else to_numpy(value))
        else:
            array = self._of_lists(listed(value))
        if not as_tensor:
            return array
        if self.is_bfloat16 and is_tensor(value) and array.dtype.kind == "f":
            return value
        # torch refuses other orders of the axes and warns of memory that it must not change.
        tensor = sys.modules["torch"].from_numpy(np.require(array, requirements=["C", "W"]))
        return tensor.bfloat16() if self.is_bfloat16 else tensor

    def _decompressed(self, data: bytes) -> NDArray[Any]:
        if self.encoding is None or self._fixed_shape is None:
            raise PydanticCustomError(
                "array_encoding",
                "an array without an encoding is declared, got {size} bytes, as of an image file",
                {"size": len(data)},
            )
        try:
            pixels = decode_pixels(data, self.encoding, self._fixed_shape)
        except InvalidArgument as error:
            raise PydanticCustomError("array_image", "{reason}", {"reason": error.message}) from None
        return self._checked(pixels)

    def _of_lists(self, value: Any) -> NDArray[Any]:
        """The array of nested lists that `_listed_type` has taken."""
        if self.dtype.kind == "f":
            given = np.asarray(value, dtype=np.float64)
            with np.errstate(over="ignore"):
                array = given.astype(self.dtype, copy=False)
            self._check_overflow(array, given)
        else:
            array = np.asarray(value, dtype=self.dtype)
        if array.ndim < len(self.shape):  # nested lists cannot say what follows a length of 0
            array = array.reshape((*array.shape, *(length or 0 for length in self.shape[array.ndim :])))
        return array

    def _check_overflow(self, array: NDArray[Any], given: NDArray[Any]) -> None:
        if (np.isinf(array) & np.isfinite(given)).any():
            raise self._misfit(given)

    def _misfit(self, given: NDArray[Any]) -> PydanticCustomError:
        return PydanticCustomError(
            "array_value",
            "an element of {given} does not fit {declared}",
            {"declared": self.name, "given": given.dtype.name},
        )

    def _checked(self, given: NDArray[Any]) -> NDArray[Any]:
        """An array of the declared type, or the error that names both types or both shapes."""
        declared = self.dtype
        if hasattr(given, "mask"):
            raise PydanticCustomError("array_mask", "an array with a mask cannot be sent: use filled()")
        are_integers = given.dtype.kind in "iu" and declared.kind in "iu"
        if given.dtype != declared and not are_integers and not np.can_cast(given.dtype, declared, "same_kind"):
            raise PydanticCustomError(
                "array_dtype",
                "an array of {declared} is declared, got elements of {given}",
                {"declared": self.name, "given": given.dtype.name},
            )
        if len(given.shape) != len(self.shape) or any(
            length not in (None, found) for length, found in zip(self.shape, given.shape, strict=True)
        ):
            raise PydanticCustomError(
                "array_shape",
                "an array of shape {declared} is declared, got {given}",
                {"declared": str(self.shape), "given": str(given.shape)},
            )
        with np.errstate(over="ignore"):
            array = given if given.dtype == declared else given.astype(declared)
        if array is not given and declared.kind == "f":
            self._check_overflow(array, given)
        elif array is not given and (array != given).any():
            raise self._misfit(given)
        if self.low is not None or self.high is not None:
            self._check_bounds(array)
        return array

    def _listed_type(self) -> Any:
        """The type of the same values as nested lists; the JSON Schema is that of this type."""
        kind, low, high = self.dtype.kind, self.low, self.high
        nested: Any = bool
        if kind != "b":
            limits = (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max) if kind in "iu" else (-np.inf, np.inf)
            least = limits[0] if low is None else low.min() if low.size else None
            most = limits[1] if high is None else high.max() if high.size else None
            # pydantic refuses NaN with any bound, and infinity with finite bounds.
            bounds = {} if least is None or most is None else _finite(least, most)
            nested = int if kind in "iu" else float
            nested = Annotated[nested, Field(**bounds)] if bounds else nested
        for length in reversed(self.shape):
            nested = list[nested]
            if length is not None:
                nested = Annotated[nested, Field(min_length=length, max_length=length)]
        if (low is None and high is None) or self._elements_say_all():
            return nested
        if self.shape and low is not None and high is not None and low.ndim == 1 and low.size <= LISTED_ELEMENTS:
            type_name, names = "integer" if kind in "iu" else "number", {"ge": "minimum", "le": "maximum"}
            items: list[Any] = [
                {"type": type_name, **{names[key]: bound for key, bound in _finite(*pair).items()}}
                for pair in zip(low, high, strict=True)
            ]
            nested = Annotated[nested, Field(json_schema_extra={"prefixItems": items})]
        return Annotated[nested, Predicate(self._check_list)]

    def _elements_say_all(self) -> bool:
        """Whether the type of the elements alone refuses every list of numbers out of bounds."""
        low, high = self.low, self.high
        if low is None or high is None:
            return False
        if low.size == 0:
            return True
        if self.dtype.kind == "b":
            return not low.any() and bool(high.all())
        same = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
        return same and bool(np.isfinite(low.flat[0]) and np.isfinite(high.flat[0]))

    def _check_list(self, value: Any) -> bool:
        """True, or a `ValueError` that names an element and its bounds."""
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype=self.dtype)
        exact = np.asarray(value, dtype=np.float64) if self.dtype.kind == "f" else array
        self._check_bounds(array, exact)
        return True

    def _check_bounds(self, array: NDArray[Any], exact: NDArray[Any] | None = None) -> None:
        """Raises a `ValueError` that names the first element out of bounds.

        Args:
            array: The elements, of the declared type.
            exact: The same before rounding; None if nothing was rounded.
        """
        inside = np.ones(array.shape, dtype=np.bool_)
        for bound, holds in ((self.low, np.less_equal), (self.high, np.greater_equal)):
            if bound is not None:
                inside &= holds(bound, array)  # NaN is outside
        if exact is not None and self.dtype.kind == "f":
            inside &= ~(np.isinf(array) & np.isfinite(exact))
        if inside.all():
            return
        place = tuple(int(index) for index in np.argwhere(~inside)[0])
        found = (array if exact is None else exact)[place].item()
        low, high = (
            infinite if bound is None else np.broadcast_to(bound, array.shape)[place].item()
            for bound, infinite in ((self.low, -np.inf), (self.high, np.inf))
        )
        raise ValueError(f"{found} at {list(place)} is not between {low} and {high} ({self.name})")


def _as_lists(value: Any, info: SerializationInfo) -> Any:
    """The nested lists that an array becomes in JSON. An environment may have assigned them itself."""
    if info.mode != "json":
        return value
    return list_of(value) if is_array(value) else value.tolist() if isinstance(value, np.generic) else value


def _finite(low: Any, high: Any) -> dict[str, Any]:
    """The finite bounds, as pydantic names them."""
    given = {"ge": np.asarray(low).item(), "le": np.asarray(high).item()}
    return {name: bound for name, bound in given.items() if np.isfinite(bound)}
