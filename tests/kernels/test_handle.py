"""Bundles of arrays: refusals, and equal views for kernels and plain Python."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from hisearch.base.jit import kernel
from hisearch.kernels.core.handle import Array, Handle, HandleType, Record

POINT = np.dtype([("x", "f8"), ("n", "i4")], align=True)


class Inner(Handle):
    FIELDS: ClassVar[dict[str, Any]] = {"scale": Record(POINT), "weights": Array("f8", 1)}


class Outer(Handle):
    FIELDS: ClassVar[dict[str, Any]] = {"inner": Inner, "table": Array("i8", 2), "points": Array(POINT, 1)}


def inner(**changes: Any) -> Inner:
    scale = np.zeros(1, POINT).view(np.recarray)
    scale.x, scale.n = 2.5, 7
    return Inner(**{"scale": scale, "weights": np.array([1.0, 2.0, 4.0]), **changes})


def outer() -> Outer:
    points = np.zeros(2, POINT).view(np.recarray)
    points["x"], points["n"] = [0.5, 0.25], [3, 4]
    return Outer(inner=inner(), table=np.arange(6, dtype=np.int64).reshape(2, 3), points=points)


@kernel
def _read(bundle):
    total = bundle.inner.scale.x * bundle.inner.scale.n
    for k in range(bundle.inner.weights.shape[0]):
        total += bundle.inner.weights[k]
    for i in range(bundle.table.shape[0]):
        for j in range(bundle.table.shape[1]):
            total += 10.0 * i * bundle.table[i, j]
    for k in range(len(bundle.points)):
        total += bundle.points[k].x * bundle.points[k].n
    return total


@kernel
def _write(bundle):
    bundle.table[1, 2] = 99
    row = bundle.table[0]
    row[1] = -1
    point = bundle.points[1]
    point.n += 5
    bundle.inner.scale.x = 0.125


def test_kernels_read_what_python_reads() -> None:
    bundle = outer()
    assert _read(bundle) == _plain(_read)(bundle) == 2.5 * 7 + 7.0 + 10.0 * (3 + 4 + 5) + 0.5 * 3 + 0.25 * 4


def test_kernels_write_what_python_writes() -> None:
    compiled, plain = outer(), outer()
    _write(compiled)
    _plain(_write)(plain)
    for bundle in (compiled, plain):
        assert bundle.table.tolist() == [[0, -1, 2], [3, 4, 99]]
        assert bundle.points["n"].tolist() == [3, 9]
        assert bundle.inner.scale.x == 0.125


def test_handle_keeps_its_arrays_alive() -> None:
    bundles = [outer() for _ in range(200)]
    assert {_read(bundle) for bundle in bundles} == {_read(outer())}


def test_record_is_the_array_it_came_from() -> None:
    scale = np.zeros(1, POINT).view(np.recarray)
    bundle = inner(scale=scale)
    scale["x"] = 8.0
    assert bundle.scale.x == 8.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": np.zeros(3, np.float32)}, r"Inner\.weights: expected a C-contiguous"),
        ({"weights": np.zeros((3, 1))}, r"Inner\.weights: expected a C-contiguous"),
        ({"weights": np.zeros(6)[::2]}, r"Inner\.weights: expected a C-contiguous"),
        ({"scale": np.zeros(2, POINT)}, r"Inner\.scale: expected one"),
        ({"scale": np.zeros(1, np.dtype([("x", "f8"), ("n", "i8")]))}, r"Inner\.scale: expected one"),
        ({"colour": np.zeros(1)}, r"Inner: fields differ: \['colour'\]"),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        inner(**changes)


def test_missing_field_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Inner: fields differ: \['scale'\]"):
        Inner(weights=np.zeros(1))


def test_another_handle_in_place_of_the_declared_one_is_refused() -> None:
    bundle = outer()
    with pytest.raises(TypeError, match=r"Outer\.inner"):
        Outer(inner=bundle, table=bundle.table, points=bundle.points)


def _plain(function: Any) -> Any:
    """The Python function of a kernel (with the jit off, kernels are that already)."""
    return getattr(function, "py_func", function)


def test_a_handle_of_another_layout_is_of_another_type() -> None:
    """Else kernels that were compiled for the one would be loaded from disk for the other."""
    fields = {"values": Array("f8", 1), "count": Record(np.dtype([("n", "i8")]))}
    layouts = [
        fields,
        fields | {"more": Array("f8", 1)},
        fields | {"values": Array("f4", 1)},
        fields | {"values": Array("f8", 2)},
        fields | {"count": Record(np.dtype([("n", "i8"), ("m", "i8")]))},
        dict(reversed(fields.items())),
    ]
    classes = [type("Bundle", (Handle,), {"FIELDS": layout}) for layout in layouts]
    around = [type("Around", (Handle,), {"FIELDS": {"inside": inner}}) for inner in classes]
    for same_name in (classes, around):
        assert len({HandleType(namesake) for namesake in same_name}) == len(layouts)
