from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.specs import yaml_nodes
from hisearch.specs.errors import SpecError
from hisearch.specs.yaml_nodes import MAX_DEPTH, Mark, dump_yaml, load_value, load_yaml

_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029\ufeff"), max_size=20
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_DATA = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=20
)


_PIECES = st.sampled_from([
    *"ab1: \n-[]{},#'\"&*|>%@`.~\t?!\r\u2028\ufeffé", "\n  ", "- ", ": ", "a: ", "'b'", '"\\x41"', "|\n  ", ">-\n  ",
    "&a ", "*a", "!!str ", "---", "...", "8e10", "\x01", "\ud800",
])  # fmt: skip


def _refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_yaml(text, Path("x.yaml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8e10", 8e10),
        ("3.35e12", 3.35e12),
        ("1E-6", 1e-6),
        (".5", 0.5),
        ("-1.", -1.0),
        ("12", 12),
        ("0o17", 15),
        ("0x1f", 31),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-11-01", "2026-11-01"),
        ("'8e10'", "8e10"),
        ("!!str 12", "12"),
        ("~", None),
        ("null", None),
        ("", None),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = load_value(text)
    assert read == value
    assert type(read) is type(value)


def test_every_key_and_item_has_its_place() -> None:
    _, positions = load_yaml("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")
    assert positions[()] == Mark(1, 1)
    assert positions[("b",)] == Mark(2, 1)
    assert positions[("b", 0)] == Mark(3, 5)
    assert positions[("b", 1, "c")] == Mark(4, 6)
    assert positions[("b", 1, "d")] == Mark(5, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "x.yaml:4: b.c: given twice, first in line 3"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: a second document begins here; one file holds one document"),
        (
            "a: [1, 2\nb: 3\n",
            "x.yaml:2: not YAML: while parsing a flow sequence expected ',' or ']', but got ':', column 2",
        ),
        ("1: a\n", "x.yaml:1: a key must be text; put it in quotes"),
        ("[a]: 1\n", "x.yaml:1: a key must be text; put it in quotes"),
        (
            "a: !!python/object:os.system x\n",
            "x.yaml:1: a: tag tag:yaml.org,2002:python/object:os.system is not allowed",
        ),
        ("a: !!int x\n", "x.yaml:1: a: 'x' is not a usable number"),
        ("a: " + "9" * 5000 + "\n", "is not a usable number"),
        ('a: "\\ud800"\n', "x.yaml:1: a: text holds half of a surrogate pair"),
        ("b: 1\na: \x01\n", "x.yaml:2: not YAML: holds a control character"),
        ("a: &b [*b]\n", f"nested more than {MAX_DEPTH} levels deep"),
        ("[" * 100_000, "nested too deeply"),
        ("#" * 5_000_000, "larger than"),
    ],
)
def test_what_is_no_plain_document_is_refused(text: str, message: str) -> None:
    assert message in _refusal(text)


def test_aliases_that_multiply_are_refused() -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9))
    assert "more than 100000 values, aliases written out" in _refusal(f"l0: &l0 [x]\n{levels}\n")


def test_an_alias_repeats_its_value() -> None:
    assert load_yaml("a: &x {b: 1}\nc: *x\n")[0] == {"a": {"b": 1}, "c": {"b": 1}}


@given(_DATA)
def test_what_is_written_is_read_back(data: object) -> None:
    assert load_yaml(dump_yaml(data))[0] == data


@given(st.lists(_PIECES, max_size=20).map("".join))
def test_libyaml_reads_as_pyyaml_does(text: str) -> None:
    def read() -> object:
        try:
            return load_yaml(text)
        except SpecError as error:
            return str(error)

    fast = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_nodes.yaml, "__with_libyaml__", False)
        assert repr(fast) == repr(read())
