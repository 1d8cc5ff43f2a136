"""Requests of a case: drawn from a few figures, named by the blocks of their texts, and turned into tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

#: A request as a recording holds it.
Row = dict[str, Any]

#: Tokens that no text contains: 0 and 1 are left out, 2 ends a sequence.
END_TOKEN = 2
_FIRST_TOKEN = 10

#: Key of a workload -> default. A pair is a range, both ends included, drawn evenly in the logarithm.
WORKLOAD: dict[str, Any] = {
    "requests": 60,
    "seed": 0,
    "rate_per_s": 10.0,
    "burst": 1,
    "input_tokens": [20, 400],
    "output_tokens": [5, 80],
    "shared_prefixes": {"count": 0, "tokens": [32, 256], "share": 0.5},
    "turns": 0.0,
    "repeats": 0.0,
    "samples": 1,
    "priorities": 0,
    "limits": 0.0,
    "eos": 0.0,
    "max_tokens": 0,
}
_SHARES = ("turns", "repeats", "limits", "eos")


class WorkloadError(Exception):
    """A workload that cannot be drawn; the text is ``key: what is wrong``."""


def make_requests(workload: Mapping[str, Any]) -> list[Row]:
    """Draw requests; the same workload gives the same requests.

    Keys, all optional: ``requests`` (how many) and ``seed``; ``rate_per_s`` (Poisson) with ``burst`` arriving at once;
    ``input_tokens`` and ``output_tokens`` (ranges); ``shared_prefixes`` (a ``share`` of prompts begins with one of
    ``count`` texts); ``turns`` and ``repeats`` (shares of requests that continue or repeat an earlier one); ``samples``
    (each prompt that many times at once); ``priorities`` (levels; 0: none); ``limits`` (share with a declared limit) of
    which the share ``eos`` ends before it; ``max_tokens`` (prompt and output together; 0: no bound).

    Raises:
        WorkloadError: an unknown key, or a value of another type.
    """
    figures = _checked(workload)
    rng = random.Random(figures["seed"])
    shared = figures["shared_prefixes"]
    next_token = _FIRST_TOKEN

    def text(tokens: int) -> list[int]:
        nonlocal next_token
        next_token += tokens
        return list(range(next_token - tokens, next_token))

    prefixes = [text(_drawn(rng, shared["tokens"])) for _ in range(shared["count"])]
    clock = 0.0
    earlier: list[list[int]] = []
    rows: list[Row] = []
    for number in range(figures["requests"]):
        if number % figures["burst"] == 0:
            clock = round(clock + rng.expovariate(figures["rate_per_s"] / figures["burst"]), 6)
        kind = rng.random()
        if earlier and kind < figures["turns"]:
            prompt = rng.choice(earlier[-20:]) + text(_drawn(rng, figures["input_tokens"]))
        elif earlier and kind < figures["turns"] + figures["repeats"]:
            before = rng.choice(rows[-20:])
            prompt = before["_tokens"][: before["input_tokens"]]
        elif prefixes and rng.random() < shared["share"]:
            prompt = rng.choice(prefixes) + text(_drawn(rng, figures["input_tokens"]))
        else:
            prompt = text(_drawn(rng, figures["input_tokens"]))
        if figures["max_tokens"]:
            prompt = prompt[: figures["max_tokens"] - 1]
        priority = rng.randrange(figures["priorities"]) if figures["priorities"] else None
        for sample in range(figures["samples"]):
            output = _drawn(rng, figures["output_tokens"])
            if figures["max_tokens"]:
                output = min(output, figures["max_tokens"] - len(prompt))
            name = f"r{number:04d}" if figures["samples"] == 1 else f"r{number:04d}-{sample:02d}"
            row: Row = {"id": name, "arrival_s": clock, "input_tokens": len(prompt), "output_tokens": output}
            if priority is not None:
                row["priority"] = priority
            if rng.random() < figures["limits"]:
                slack = rng.randint(1, 2 * output + 8) if rng.random() < figures["eos"] else 0
                if figures["max_tokens"]:
                    slack = min(slack, figures["max_tokens"] - len(prompt) - output)
                row["max_output_tokens"] = output + slack
            row["_tokens"] = prompt + text(output)
            rows.append(row)
            earlier.append(row["_tokens"])
    return rows


def _checked(workload: Mapping[str, Any]) -> dict[str, Any]:
    figures = {**WORKLOAD, **workload}
    for key, value in figures.items():
        if key not in WORKLOAD:
            raise WorkloadError(f"{key}: unknown key; expected one of {', '.join(WORKLOAD)}")
        default = WORKLOAD[key]
        if isinstance(default, list):
            _check_range(key, value)
        elif isinstance(default, dict):
            if not isinstance(value, dict) or set(value) - set(default):
                raise WorkloadError(f"{key}: expected a mapping of {', '.join(default)}, found {value!r}")
            figures[key] = {**default, **value}
            _check_range(f"{key}.tokens", figures[key]["tokens"])
        elif isinstance(value, bool) or not isinstance(value, (int, float) if isinstance(default, float) else int):
            raise WorkloadError(
                f"{key}: expected {'a number' if isinstance(default, float) else 'an integer'}, found {value!r}"
            )
        elif key in _SHARES and not 0 <= value <= 1:
            raise WorkloadError(f"{key}: expected a share from 0 to 1, found {value!r}")
        elif key in ("requests", "rate_per_s", "burst", "samples") and value <= 0:
            raise WorkloadError(f"{key}: expected more than 0, found {value!r}")
    return figures


def _check_range(key: str, value: Any) -> None:
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise WorkloadError(f"{key}: expected [least, most], two integers, found {value!r}")
    if not 1 <= value[0] <= value[1]:
        raise WorkloadError(f"{key}: expected 1 <= least <= most, found {value!r}")


def _drawn(rng: random.Random, ends: list[int]) -> int:
    low, high = ends
    return min(high, int(low * (high / low + 1e-9) ** rng.random() + 0.5))


def add_block_ids(rows: list[Row], block_tokens: int) -> None:
    """Name the full blocks of every row that has no ``block_ids``, in place.

    A name is shared by two requests if and only if all their tokens up to that block's end are equal. A row without
    tokens of its own (``_tokens``) shares nothing.
    """
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    next_id = 1 + max((name for row in rows for name in row.get("block_ids", ())), default=-1)
    for row in rows:
        tokens = row.pop("_tokens", None)
        if "block_ids" in row:
            continue
        ids: list[int] = []
        for start in range(
            0, (row["input_tokens"] + row["output_tokens"]) // block_tokens * block_tokens, block_tokens
        ):
            name = next_id
            if tokens is not None:
                name = names.setdefault((ids[-1] if ids else -1, tuple(tokens[start : start + block_tokens])), next_id)
            next_id = max(next_id, name + 1)
            ids.append(name)
        row["block_ids"] = ids


def token_texts(rows: list[Row], block_tokens: int) -> dict[Any, list[int]]:
    """Tokens of prompt and output of each request, by id.

    Equal ``block_ids`` give equal tokens. Behind the last named block every token is the request's own.
    """
    next_own = _FIRST_TOKEN + 1 + max((name for row in rows for name in row["block_ids"]), default=0)
    texts = {}
    for row in rows:
        total = row["input_tokens"] + row["output_tokens"]
        tokens = [_FIRST_TOKEN + name for name in row["block_ids"] for _ in range(block_tokens)]
        tokens += [next_own] * (total - len(tokens))
        next_own += 1
        texts[row["id"]] = tokens
    return texts
