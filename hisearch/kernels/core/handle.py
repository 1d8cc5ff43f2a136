"""Bundles of arrays that kernels receive as one pointer.

A named tuple of thirty arrays is some two kilobytes. Copying it at every call of a small kernel would dominate the
simulation. A ``Handle`` is passed as the address of a table of (data, shape) entries instead. Inside a kernel
``handle.requests`` is a load from that table. The table never changes while a kernel runs, so the compiler may hoist
the load.

Subclasses declare ``FIELDS``: name -> ``Array(dtype, ndim)``, ``Record(dtype)`` (one structured scalar), or another
Handle class. With the jit off, the same attributes are plain NumPy arrays.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, register_model, typeof_impl, unbox
from numba.np.arrayobj import make_array, populate_array

import hisearch.base.indexing  # noqa: F401  (before anything is compiled)

_SLOTS = 3  # per field: data address, first and second extent


class Array(NamedTuple):
    """A C-contiguous array field."""

    dtype: Any
    ndim: int


class Record(NamedTuple):
    """A single structured value."""

    dtype: Any


class Handle:
    """Base of all bundles; keeps its arrays alive and knows their addresses."""

    FIELDS: ClassVar[dict[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        """Bundle ``values``, which must be exactly the declared fields.

        Raises:
            TypeError: a field is missing, unknown, of another dtype or rank, or not C-contiguous.
        """
        if values.keys() != self.FIELDS.keys():
            raise TypeError(f"{type(self).__name__}: fields differ: {sorted(values.keys() ^ self.FIELDS.keys())}")
        # Attributes of record arrays are slow to read; those of the underlying plain arrays are not.
        entries: list[int] = []
        for name, kind in self.FIELDS.items():
            value = values[name]
            if isinstance(kind, Array):
                plain = np.asarray(value)
                if plain.dtype != kind.dtype or plain.ndim != kind.ndim or not plain.flags.c_contiguous:
                    raise TypeError(f"{type(self).__name__}.{name}: expected a C-contiguous {kind}, got {value.dtype}")
                entries += (plain.ctypes.data, *plain.shape, 0)[:_SLOTS]
            elif isinstance(kind, Record):
                plain = np.asarray(value)
                if plain.dtype != kind.dtype or plain.shape != (1,):
                    raise TypeError(f"{type(self).__name__}.{name}: expected one {kind.dtype} record")
                entries += (plain.ctypes.data, 0, 0)
                self._keep(name, value)
                value = value[0]
            else:
                if not isinstance(value, kind):
                    raise TypeError(
                        f"{type(self).__name__}.{name}: expected a {kind.__name__}, got {type(value).__name__}"
                    )
                entries += (value.address, 0, 0)
            setattr(self, name, value)
        self._table = np.array(entries, np.int64)
        self.address = int(self._table.ctypes.data)
        _LIVING[self.address] = self

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def _keep(self, name: str, value: Any) -> None:
        setattr(self, f"_{name}_owner", value)


#: All handles that are alive, by address.
_LIVING: WeakValueDictionary[int, Handle] = WeakValueDictionary()


def handle_at(address: int) -> Handle:
    """The living handle at ``address``."""
    return _LIVING[address]


class HandleType(types.Type):
    """Numba's view of a Handle class."""

    def __init__(self, handle_class: type[Handle]) -> None:
        self.handle_class = handle_class
        # With the layout, so that no kernel is loaded from disk that was compiled for another one: modules of small
        # kernels need not import what declares their arguments.
        name = f"{handle_class.__module__}.{handle_class.__qualname__}"
        super().__init__(name=f"Handle({name}, {_layout_digest(handle_class)})")

    def field(self, name: str) -> tuple[int, Any]:
        """Position and kind of a field."""
        names = list(self.handle_class.FIELDS)
        return names.index(name), self.handle_class.FIELDS[name]


@functools.cache
def _layout_digest(handle_class: type[Handle]) -> str:
    """Digest of a Handle class's fields, and of those of the Handles in it."""
    hasher = hashlib.sha256()
    waiting, seen = [handle_class], {handle_class}
    while waiting:
        for name, kind in waiting.pop().FIELDS.items():
            if isinstance(kind, Array | Record):
                hasher.update(repr((name, type(kind).__name__, np.dtype(kind.dtype), *kind[1:])).encode())
                continue
            hasher.update(repr((name, kind.__qualname__)).encode())
            if kind not in seen:
                seen.add(kind)
                waiting.append(kind)
    return hasher.hexdigest()[:8]


def _numba_type(kind: Any) -> types.Type:
    return _type_of(kind) if isinstance(kind, Array | Record) else HandleType(kind)


@functools.cache
def _type_of(kind: Array | Record) -> types.Type:
    if isinstance(kind, Array):
        return types.Array(from_dtype(np.dtype(kind.dtype)), kind.ndim, "C")
    return from_dtype(np.dtype(kind.dtype))


@typeof_impl.register(Handle)
def _typeof_handle(value: Handle, _context: Any) -> HandleType:
    return HandleType(type(value))


@register_model(HandleType)
class _HandleModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: HandleType) -> None:
        super().__init__(dmm, fe_type, ir.IntType(64))


@unbox(HandleType)
def _unbox_handle(_type: HandleType, obj: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(obj, "address")
    value = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(value, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


@infer_getattr
class _HandleAttributes(AttributeTemplate):
    key = HandleType

    def generic_resolve(self, handle: HandleType, attr: str) -> types.Type | None:
        if attr not in handle.handle_class.FIELDS:
            return None
        return _numba_type(handle.field(attr)[1])


@lower_getattr_generic(HandleType)
def _load_field(context: Any, builder: Any, handle: HandleType, value: Any, attr: str) -> Any:
    index, kind = handle.field(attr)
    word = ir.IntType(64)
    table = builder.inttoptr(value, word.as_pointer())

    def load(slot: int) -> Any:
        pointer = builder.gep(table, [ir.Constant(word, _SLOTS * index + slot)])
        loaded = builder.load(pointer)
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(kind, Array | Record):
        return load(0)
    numba_type = _numba_type(kind)
    if isinstance(kind, Record):
        return builder.inttoptr(load(0), context.get_value_type(numba_type))
    array = make_array(numba_type)(context, builder)
    itemsize = ir.Constant(word, np.dtype(kind.dtype).itemsize)
    shape = [load(1 + axis) for axis in range(kind.ndim)]
    strides = [itemsize] if kind.ndim == 1 else [builder.mul(itemsize, shape[1]), itemsize]
    populate_array(
        array,
        data=builder.inttoptr(load(0), array.data.type),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()
