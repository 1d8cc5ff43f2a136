"""What a trace says that requests ask for by name: LoRA adapters, and grammars that their outputs follow.

Requests of different adapters share no KV, whatever their prompts say: an adapter changes what keys and values are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.specs.workloads.workload import GeneratedAdaptersSpec, GeneratedGrammarsSpec, GeneratorSpec


class RequestAdapters(NamedTuple):
    """Names of adapters, each used, their ranks, and the index of each request's adapter among them.

    rank (K,): 0: as the deployment says. adapter (N,): -1: the request asks for the base model.
    """

    names: tuple[str, ...]
    rank: I4
    adapter: I4


class RequestGrammars(NamedTuple):
    """Names of grammars of structured output, each used, seconds that they take to compile, and each request's.

    compile_s (K,): NaN: as the deployment says. grammar (N,): index among the names; -1: free text.
    """

    names: tuple[str, ...]
    compile_s: F8
    grammar: I4


def adapters_of(requested: Sequence[str | None], ranks: Sequence[int] = ()) -> RequestAdapters | None:
    """From each request's name of an adapter, None for the base model; None where none asks for any.

    Args:
        requested: names.
        ranks: of each request's adapter; 0, or empty: as the deployment says.
    """
    names, codes = _numbered(requested)
    if not names:
        return None
    rank = np.zeros(len(names), np.int32)
    for code, given in zip(codes, ranks, strict=False):
        if code >= 0:
            rank[code] = given
    return RequestAdapters(names, rank, np.array(codes, np.int32))


def grammars_of(requested: Sequence[str | None], compile_s: Sequence[float]) -> RequestGrammars | None:
    """From each request's name of a grammar, None for free text; None where all are.

    Args:
        requested: names.
        compile_s: of each request's grammar; NaN: as the deployment says. Of several figures the last holds.
    """
    names, codes = _numbered(requested)
    if not names:
        return None
    seconds = np.full(len(names), np.nan)
    for code, given in zip(codes, compile_s, strict=True):
        if code >= 0 and not np.isnan(given):
            seconds[code] = given
    return RequestGrammars(names, seconds, np.array(codes, np.int32))


def _numbered(requested: Sequence[str | None]) -> tuple[tuple[str, ...], list[int]]:
    """Names in order of first appearance, and the index of each request's; -1: it asks for none."""
    numbers: dict[str, int] = {}
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in requested]
    return tuple(numbers), codes


def draw_adapters(spec: GeneratedAdaptersSpec, session: I8, draws: Sequence[F8]) -> RequestAdapters | None:
    """The adapter of each session's requests, by a Zipf law; None where none asks for any.

    Args:
        spec: the law.
        session: number of each request's session; shape (N,).
        draws: of each source, in the order of their sessions, an even draw from 0 to 1 for each session.
    """
    edges = spec.base_share + (1 - spec.base_share) * _zipf(spec.count, spec.zipf)
    drawn = np.concatenate(draws)
    of_session = np.where(
        drawn < spec.base_share, -1, np.minimum(np.searchsorted(edges, drawn, "right"), spec.count - 1)
    )
    digits = len(str(spec.count))
    # Of equal length, so that they sort by popularity.
    names = tuple(f"adapter-{number:0{digits}}" for number in range(1, spec.count + 1))
    rank = np.resize(np.array(spec.ranks or [0], np.int32), spec.count)
    adapter = of_session[session].astype(np.int32)
    return chosen(RequestAdapters(names, rank, adapter), np.arange(len(session)))


def _zipf(count: int, exponent: float) -> F8:
    """Share of the k most popular of ``count`` names, k from 1 on."""
    popularity = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: F8 = np.cumsum(popularity) / popularity.sum()
    return shares


def draw_grammars(spec: GeneratedGrammarsSpec | None, draws: Callable[[int], F8], requests: int, first: int) -> I8:
    """Number of each request's grammar, from ``first`` on, by a Zipf law; -1: free text. ``draws``: even, from 0 to 1.

    shape (N,).
    """
    if spec is None:
        return np.full(requests, -1, np.int64)
    drawn = draws(requests) / spec.share
    number = np.minimum(np.searchsorted(_zipf(spec.grammars, spec.zipf), drawn, "right"), spec.grammars - 1)
    return np.where(drawn < 1.0, first + number, -1)


def grammar_specs(spec: GeneratorSpec) -> list[GeneratedGrammarsSpec]:
    """The laws of a generator's grammars: its own, then those of classes; grammars are numbered in this order."""
    stated = [spec.structured, *(each.structured for each in spec.classes)]
    return [each for each in stated if each is not None]


def named_grammars(spec: GeneratorSpec, number: I8) -> RequestGrammars | None:
    """The grammars of generated requests by their numbers, of equal length, so that they sort by popularity."""
    laws = grammar_specs(spec)
    compile_s = [law.compile_s for law in laws for _ in range(law.grammars)]
    digits = len(str(len(compile_s)))
    names = tuple(f"grammar-{k:0{digits}}" for k in range(1, len(compile_s) + 1))
    seconds = np.array([np.nan if each is None else each for each in compile_s])
    return chosen(RequestGrammars(names, seconds, number.astype(np.int32)), np.arange(len(number)))


#: Either, which have the same form.
Named = TypeVar("Named", RequestAdapters, RequestGrammars)


def chosen(named: Named | None, indices: np.ndarray) -> Named | None:
    """Of the requests with these indices, in their order; only names that they ask for. None: they ask for none."""
    if named is None:
        return None
    names, of_name, of_request = named
    asked = of_request[indices]
    left, codes = np.unique(asked[asked >= 0], return_inverse=True)
    if not len(left):
        return None
    renumbered = np.full(len(asked), -1, np.int32)
    renumbered[asked >= 0] = codes
    return frozen(type(named)(tuple(names[k] for k in left.tolist()), of_name[left], renumbered))


def frozen(named: Named) -> Named:
    """Read-only, of the documented types."""
    dtype = np.int32 if isinstance(named, RequestAdapters) else np.float64
    of_name, of_request = np.array(named[1], dtype), np.array(named[2], np.int32)
    for column in (of_name, of_request):
        column.flags.writeable = False
    return type(named)(tuple(named.names), of_name, of_request)


def check_named(named: RequestAdapters | RequestGrammars, requests: int) -> None:
    """Check what everything downstream relies on.

    Raises:
        ValueError: a broken rule of the class's documentation.
    """
    what, key = ("adapters", "rank") if isinstance(named, RequestAdapters) else ("grammars", "compile_s")
    names, of_name, of_request = named
    if len(of_request) != requests:
        raise ValueError(f"{what}: column {what[:-1]} has {len(of_request)} rows, not {requests}")
    if ((of_request < -1) | (of_request >= len(names))).any():
        raise ValueError(f"{what}: {what[:-1]}: one of the names, or -1")
    if len(of_name) != len(names) or (of_name < 0).any() or np.isinf(of_name).any():
        raise ValueError(f"{what}: {key}: of each {what[:-1]}, at least 0")
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: names: none twice")
