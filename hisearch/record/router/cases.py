"""What to record: a policy's settings, prompts, and an order of sends and finishes; drawn by seed, or read."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Policies that are drawn, as often as they stand here.
POLICIES = (
    "cache_aware", "cache_aware", "cache_aware", "trimmed", "trimmed", "power_of_two", "power_of_two", "manual",
    "manual", "consistent_hashing", "random", "round_robin", "bucket",
)  # fmt: skip
#: Policies before prefill or decode workers; bucket is drawn with the others, as it does nothing elsewhere.
PD_POLICIES = (
    "cache_aware", "cache_aware", "round_robin", "random", "power_of_two", "manual", "manual", "consistent_hashing",
)  # fmt: skip
_KEYED = ("manual", "consistent_hashing")
#: Keys of a case: those of a recording that the router's choices do not decide.
KEYS = ("policy", "settings", "workers", "endpoint", "text_rule", "join", "segments", "prompts")


class CaseError(Exception):
    """A case that cannot be recorded; the text is ``file: key: what is wrong``."""


def read_case(path: Path) -> dict[str, Any]:
    """A case, or a recording to repeat.

    Raises:
        CaseError: not JSON, or a key is missing.
    """
    try:
        data = path.read_bytes()
        case: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, ValueError) as error:
        raise CaseError(f"{path}: {error}") from None
    for key in ("policy", "settings", "workers", "events"):
        if key not in case:
            raise CaseError(f"{path}: {key}: missing")
    return case


def random_case(seed: int) -> dict[str, Any]:
    """Settings, prompts and events of a case; the policies take turns."""
    rng = random.Random(seed)
    policy = POLICIES[seed % len(POLICIES)]
    case: dict[str, Any] = {
        "policy": "cache_aware" if policy == "trimmed" else policy,
        "settings": _settings(rng, policy),
        "workers": rng.choice((2, 3, 4, 4, 5, 8)),
        "endpoint": "/generate text, PD mode, prefill policy" if policy == "bucket" else "/generate text",
        "text_rule": rng.choice(("clean", "clean", "words")),
        "join": "",
    }
    if policy in ("cache_aware", "trimmed") and rng.random() < 0.25:
        case |= {"endpoint": "/v1/chat/completions", "join": " "}
    elif policy == "cache_aware" and rng.random() < 0.2:
        case |= {"endpoint": "/generate input_ids", "text_rule": "ids", "join": " "}
    case |= _prompts(rng, rng.randint(150, 400), tokens=case["text_rule"] == "ids")
    case["events"] = list(_events(rng, len(case["prompts"]), case["policy"]))
    return case


def random_pd_case(seed: int) -> dict[str, Any]:
    """A case before prefill workers or, every other time, before decode workers; prompts end in between."""
    rng = random.Random(f"pd {seed}")
    policy = PD_POLICIES[seed // 2 % len(PD_POLICIES)]
    case: dict[str, Any] = {
        "policy": policy,
        "settings": _settings(rng, policy) | {"stream": rng.random() < 0.5},
        "workers": rng.choice((2, 3, 4, 5, 8)),
        "endpoint": f"/generate text, PD mode, {'decode' if seed % 2 else 'prefill'} policy",
        "text_rule": rng.choice(("clean", "words")),
        "join": "",
    }
    case |= _prompts(rng, rng.randint(150, 400), tokens=False)
    case["events"] = [*_with_first_tokens(rng, _events(rng, len(case["prompts"]), policy))]
    return case


def _with_first_tokens(rng: random.Random, events: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """The events, and now and then between a send and its finish that the prompt is computed."""
    waiting: list[int] = []
    for event in events:
        if event[0] == "finish":
            waiting = [prompt for prompt in waiting if prompt != event[1]]
        yield event
        if event[0] == "send":
            waiting.append(event[1])
        while waiting and rng.random() < 0.4:
            yield ["first_token", waiting.pop(rng.randrange(len(waiting)))]


def _settings(rng: random.Random, policy: str) -> dict[str, Any]:
    if policy in ("cache_aware", "trimmed"):
        trimmed = {"eviction_interval_secs": 1, "max_tree_size": rng.choice((2000, 5000, 9000, 20000))}
        return {
            "cache_threshold": rng.choice((0.0, 0.1, 0.3, 0.3, 0.5, 0.8)),
            "balance_abs_threshold": rng.choice((0, 1, 2, 4, 8, 16, 64)),
            "balance_rel_threshold": rng.choice((1.0, 1.0001, 1.1, 1.5, 2.0)),
        } | (trimmed if policy == "trimmed" else {"eviction_interval_secs": 600})
    if policy == "power_of_two":
        return {"worker_startup_check_interval": 1, "get_load": rng.random() < 0.7}
    if policy == "manual":
        return {"assignment_mode": rng.choice(("random", "min_load", "min_group"))}
    if policy == "bucket":
        return {
            "balance_abs_threshold": rng.choice((16, 64, 2000)),
            "balance_rel_threshold": rng.choice((1.0001, 1.5, 3.0)),
            "bucket_adjust_interval_secs": 2,
        }
    return {}


def _prompts(rng: random.Random, count: int, *, tokens: bool) -> dict[str, Any]:
    """Prompts that go on from earlier ones, begin alike, or are new; a segment is [content, length]."""
    longest = rng.choice((60, 300, 1200)) // (4 if tokens else 1)
    segments: list[list[int]] = []
    prompts: list[list[int]] = []

    def new() -> int:
        segments.append([len(segments), rng.randint(1, longest)])
        return len(segments) - 1

    heads = [new() for _ in range(rng.choice((1, 3, 10)))]
    for _ in range(count):
        chance = rng.random()
        if prompts and chance < 0.5:
            prompt = [*prompts[rng.randrange(max(len(prompts) - 60, 0), len(prompts))]]
            if rng.random() < 0.2:  # Cut within its last segment.
                content, length = segments[prompt[-1]]
                segments.append([content, rng.randint(1, length)])
                prompt[-1] = len(segments) - 1
            elif len(prompt) < 12 and rng.random() < 0.9:
                prompt += [new() for _ in range(rng.choice((1, 2)))]
        elif chance < 0.8:
            prompt = [rng.choice(heads), new()]
        else:
            prompt = [new()]
        prompts.append(prompt)
    return {"segments": segments, "prompts": prompts}


def _events(rng: random.Random, prompts: int, policy: str) -> Iterator[list[Any]]:
    """Sends and finishes; how many are in flight wanders between few and many."""
    in_flight: list[int] = []
    most = rng.choice((4, 20, 60))
    for prompt in range(prompts):
        if rng.random() < 0.05:
            most = rng.choice((1, 4, 20, 60))
        yield ["send", prompt, *([f"session-{rng.randint(1, prompts // 8)}"] if policy in _KEYED else [])]
        in_flight.append(prompt)
        while in_flight and (len(in_flight) > most or rng.random() < 0.4):
            # Late ones first now and then, so that loads grow apart.
            yield ["finish", in_flight.pop(rng.choice((0, -1, rng.randrange(len(in_flight)))))]
