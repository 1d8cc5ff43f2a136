"""The simulated router against recordings of a real one, choice by choice.

What a router left to chance cannot be repeated: a random worker, a tie among a hash map's entries. There the recorded
worker is taken where the simulated router might have drawn it, and counted (``drawn``). Of policies that draw every
worker, the draws are held against even chances.

One draw is not recorded: cache_aware stamps a name that its hash map gives, though the match is too short to choose by
it (``unseen``). What follows depends on it, so every worker is tried until all that follows agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.base import blake3
from hisearch.kernels.routing.router_tree import STAMP_EVERY
from hisearch.simulate.lone_router import LoneRouter
from hisearch.traces.compiled import TraceArrays
from hisearch.validate.router.recording import RouterRecording, RouterRecordingError, read_router_recording
from hisearch.validate.router.texts import TextTree, prompts_of, text_tree

#: Even chances are doubted where draws as uneven as the recorded ones are rarer than this.
LEAST_CHANCE = 1e-4
#: Replays of a recording at most, with other unseen names.
MOST_TRIES = 400
#: Policies that draw every worker alike.
_EVEN = ("random", "power_of_two")
#: The last range's end in a recording: the largest number of 64 bits.
_NO_END = 2**64 - 1
#: What has to be as much as what.
_PAIRS = (("equal", "choices"), ("equal_trimmings", "trimmings"), ("equal_redrawings", "redrawings"))


@dataclass(frozen=True)
class ChoiceDifference:
    """A choice that differs: number of the event, the prompt's number, the worker recorded and the one simulated."""

    event: int
    prompt: int
    recorded: int
    simulated: int


@dataclass(frozen=True)
class RouterCase:
    """One recording against the simulated router.

    Attributes:
        file: path of the recording. policy: its router's.
        choices: how many it has. equal: how many are equal.
        drawn: of these, those that were left to chance, where the recorded worker was a possible one.
        unseen: names that were tried out, as no choice shows them.
        first_difference: None where all are equal.
        trimmings, equal_trimmings: of cache_aware's tree; equal where every worker keeps as many characters.
        redrawings, equal_redrawings: of bucket's ranges.
        stale_loads: choices of power_of_two whose loads are not those of the polls.
        chance: of draws at least as uneven as the recorded ones, if all workers are alike; None where few are drawn.
        error: why the recording cannot be used; all else is then empty.
        ok: no difference at all, and no doubt about even chances.
    """

    file: str
    policy: str = ""
    choices: int = 0
    equal: int = 0
    drawn: int = 0
    unseen: int = 0
    first_difference: ChoiceDifference | None = None
    trimmings: int = 0
    equal_trimmings: int = 0
    redrawings: int = 0
    equal_redrawings: int = 0
    stale_loads: int = 0
    chance: float | None = None
    error: str | None = None
    ok: bool = False


def validate_routers(paths: Iterable[Path]) -> Iterator[RouterCase]:
    """A case for each recording, in order; an unusable one yields a case with its ``error``, and the others go on."""
    for path in paths:
        try:
            yield validate_router(path)
        except (RouterRecordingError, OSError) as error:
            message = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            yield RouterCase(str(path), error=message)


def validate_router(path: Path) -> RouterCase:
    """Follow a recording's events, and compare every choice.

    Raises:
        RouterRecordingError: the file cannot be used, or has settings that are not simulated.
        OSError: the file cannot be read.
    """
    recording = read_router_recording(path)
    trace = _trace(recording)
    trims = any(event[0] == "evict" for event in recording.events)
    # Only where the clock stands in its round of eight matters, and only to trimmings.
    clocks = (recording.first_clock or 0,) if recording.first_clock is not None or not trims else range(STAMP_EVERY)
    best: _Replay | None = None
    for clock in clocks:
        best = _best_replay(recording, trace, clock, best)
        if best.agrees_until == len(recording.events):
            break
    assert best is not None
    return best.case()


def _best_replay(recording: RouterRecording, trace: TraceArrays, clock: int, best: _Replay | None) -> _Replay:
    """The replay that agrees longest, of ``best`` and those with other unseen names from ``clock`` on."""
    guesses: list[int] | None = []
    for _ in range(MOST_TRIES):
        if guesses is None:
            break
        replay = _Replay(recording, trace, guesses, clock)
        replay.run()
        best = replay if best is None or replay.agrees_until > best.agrees_until else best
        if best.agrees_until == len(recording.events):
            break
        guesses = replay.other_guesses()
    assert best is not None
    return best


class _Replay:
    """A recording's events, one after another, and what came of them."""

    def __init__(self, recording: RouterRecording, trace: TraceArrays, guesses: Sequence[int], clock: int) -> None:
        self.recording = recording
        self.router = LoneRouter(recording.router, trace, recording.workers, disaggregated=recording.disaggregated)
        self.guesses = guesses
        #: Events at which a name was drawn unseen, and the guess there.
        self.guessed: list[tuple[int, int]] = []
        #: Events up to the first that differs.
        self.agrees_until = 0
        # Ranges belong to places of the router's order; a recording may list them in another.
        self.place_of = np.argsort(recording.range_order or range(recording.workers))
        self.worker_of = np.argsort(self.place_of)
        self.sent_to: dict[int, int] = {}
        #: Of disaggregated workers, requests that the router counts.
        self.answering: set[int] = set()
        #: Prompts that each worker has cached, by its events.
        self.cached: list[set[int]] = [set() for _ in range(recording.workers)]
        self.drawn_workers: list[int] = []
        self.outcome = RouterCase(str(recording.path), recording.router.policy)
        self.counts: dict[str, Any] = dict.fromkeys(
            ("choices", "equal", "drawn", "trimmings", "equal_trimmings", "redrawings", "equal_redrawings",
             "stale_loads"), 0,
        )  # fmt: skip
        none = [-1] * recording.workers
        polls = [event[1] for event in recording.events if event[0] == "poll"]
        self.polls = [loads if recording.answers_loads else none for loads in polls]
        self.polled = 0
        self.router.set_clock(clock)
        if recording.router.policy == "consistent_hashing":
            self.router.set_hashes(_hashes(recording))
        if not recording.answers_loads:
            self.router.loads = -1

    def run(self) -> None:
        """Follow all events."""
        for number, event in enumerate(self.recording.events):
            before = self.router.unseen
            agreed = self._agrees()
            getattr(self, f"on_{event[0]}")(number, *event[1:])
            if self.router.unseen > before:
                self.guessed.append((number, self._guess()))
            if agreed and self._agrees():
                self.agrees_until = number + 1

    def other_guesses(self) -> list[int] | None:
        """The next guesses in order, the last one before what differs changed first; None: all have been tried."""
        taken = [guess for number, guess in self.guessed if number <= self.agrees_until]
        while taken and taken[-1] == self.recording.workers - 1:
            taken.pop()
        return [*taken[:-1], taken[-1] + 1] if taken else None

    def _guess(self) -> int:
        """The name for the next unseen draw."""
        count = len(self.guessed)
        return self.guesses[count] if count < len(self.guesses) else 0

    def _agrees(self) -> bool:
        counts = self.counts
        return all(counts[part] == counts[whole] for part, whole in _PAIRS)

    def on_send(self, number: int, prompt: int, worker: int, *details: Any) -> None:
        """A request was sent to ``worker``."""
        policy, now, drawn = self.recording.router.policy, 0.0, (int(self.place_of[worker]), self._guess())
        if policy == "power_of_two" and details:
            first, first_load, second, second_load = details
            drawn = (int(self.place_of[first]), int(self.place_of[second]))
            self._compare_loads({first: first_load, second: second_load})
        elif policy == "bucket" and details:
            now = details[0] / 1000.0
        elif policy == "dynamo_kv" and details:
            now = details[1] / 1000.0
        place, by_chance = self.router.choose(prompt, now, drawn)
        chosen = int(self.worker_of[place])
        self.counts["choices"] += 1
        self.counts["equal"] += chosen == worker
        self.counts["drawn"] += by_chance and chosen == worker
        if by_chance:
            self.drawn_workers.append(details[0] if policy == "power_of_two" and details else worker)
        if chosen != worker and self.outcome.first_difference is None:
            self.outcome = replace(self.outcome, first_difference=ChoiceDifference(number, prompt, worker, chosen))
        self.sent_to[prompt] = int(self.place_of[worker])
        self.router.send(prompt, self.sent_to[prompt])
        if not self.recording.streamed:
            self._begin_answer(prompt)

    def on_first_token(self, _number: int, prompt: int) -> None:
        """Its prompt is computed."""
        if self.recording.router.policy == "dynamo_kv":
            self.router.first_token(prompt, self.sent_to[prompt])
        if self.recording.streamed:
            self._begin_answer(prompt)

    def _begin_answer(self, prompt: int) -> None:
        if self.recording.disaggregated:
            self.answering.add(prompt)
            self.router.count_answer(prompt, self.sent_to[prompt], 1, streamed=self.recording.streamed)

    def on_finish(self, _number: int, prompt: int) -> None:
        """The client has the whole answer."""
        if prompt in self.answering:
            self.answering.remove(prompt)
            self.router.count_answer(prompt, self.sent_to[prompt], -1, streamed=self.recording.streamed)
        self.router.finish(prompt, self.sent_to.pop(prompt))

    def on_stored(self, _number: int, prompt: int, worker: int) -> None:
        """The worker told that it has the prompt's whole blocks."""
        self.cached[worker].add(prompt)
        self.router.set_cached(int(self.place_of[worker]), self.cached[worker])

    def on_removed(self, _number: int, prompt: int) -> None:
        """Workers told that they have no more what only this prompt needs."""
        for worker, prompts in enumerate(self.cached):
            if prompt in prompts:
                prompts.remove(prompt)
                self.router.set_cached(int(self.place_of[worker]), prompts)

    def on_evict(self, _number: int, before: dict[str, int], after: dict[str, int]) -> None:
        """The tree was trimmed, of so many characters by worker to so many."""
        same = self._tree_is(before)
        self.router.trim()
        self.counts["trimmings"] += 1
        self.counts["equal_trimmings"] += same and self._tree_is(after)

    def on_poll(self, _number: int, _loads: list[int]) -> None:
        """Workers told their loads at about this time."""
        self.router.loads = np.array(self.polls[self.polled])[self.worker_of]
        self.polled += 1

    def on_adjust(self, _number: int, _milliseconds: int, ranges: list[list[int]] | None) -> None:
        """Ranges were drawn anew; None: there was no need."""
        before = self.router.bounds
        self.router.draw_ranges()
        after = self.router.bounds
        self.counts["redrawings"] += 1
        if ranges is None:
            self.counts["equal_redrawings"] += bool((before == after).all())
            return
        last = [end for _, _, end in ranges]
        same = last[-1] == _NO_END and after[:-1].tolist() == last[:-1]
        self.counts["equal_redrawings"] += same and [worker for worker, _, _ in ranges] == self.worker_of.tolist()

    def case(self) -> RouterCase:
        """What came of it."""
        counts = self.counts
        chance = self._chance() if self.outcome.policy in _EVEN else None
        even = chance is None or chance >= LEAST_CHANCE
        ok = self._agrees() and even and counts["stale_loads"] == 0
        return replace(self.outcome, **counts, unseen=len(self.guessed), chance=chance, ok=ok)

    def _tree_is(self, characters: dict[str, int]) -> bool:
        held = self.router.tree_tokens
        return all(int(held[self.place_of[int(worker)]]) == size for worker, size in characters.items())

    def _compare_loads(self, loads: dict[int, int]) -> None:
        """Loads in a recording are those of the last poll, or of the next, which may have ended before its line."""
        # Before the first poll the router compares requests in flight, which it counts of disaggregated workers alone.
        if self.polled == 0 and self.recording.disaggregated:
            self.router.loads = self.router.answers
        if all(int(self.router.loads[self.place_of[worker]]) == load for worker, load in loads.items()):
            return
        unpolled = self.polled == 0 and len(set(loads.values())) == 1
        ahead = self.polls[self.polled : self.polled + 1]
        if ahead and all(ahead[0][worker] == load for worker, load in loads.items()):
            self.router.loads = np.array(ahead[0])[self.worker_of]
        elif not unpolled:
            self.counts["stale_loads"] += 1

    def _chance(self) -> float | None:
        """P-value of Pearson's chi-square test of the drawn workers against even chances."""
        from scipy.stats import chisquare

        counts = np.bincount(self.drawn_workers, minlength=self.recording.workers)
        return float(chisquare(counts).pvalue) if counts.sum() >= 5 * len(counts) else None


def _trace(recording: RouterRecording) -> TraceArrays:
    """The recording's prompts as requests; a token is a character."""
    if recording.prompts is not None:
        texts = prompts_of(recording.text_rule, recording.segments, recording.prompts, recording.join)
        tree = text_tree(texts + [""] * (recording.requests - len(texts)))
    else:
        tree = _lengths_tree(recording)
    count = recording.requests
    tokens = tree.end[tree.prompt_node]
    zeros, integers = np.zeros(count), np.zeros(count, np.int32)
    return TraceArrays(
        arrival_s=zeros,
        input_tokens=tokens,
        output_tokens=np.ones(count, np.int64),
        max_output_tokens=np.ones(count, np.int64),
        previous=integers - 1,
        think_s=zeros,
        session=_sessions(recording),
        tenant=integers,
        priority=integers,
        thinking_tokens=np.zeros(count, np.int64),
        prompt_node=tree.prompt_node,
        output_node=tree.prompt_node,
        parent=tree.parent,
        start_tokens=tree.start,
        end_tokens=tree.end,
    )


def _lengths_tree(recording: RouterRecording) -> TextTree:
    """Prompts without texts: each a node below the root, of its length."""
    lengths = np.array(recording.lengths or [0] * recording.requests, np.int64)
    lengths = np.append(lengths, np.zeros(recording.requests - len(lengths), np.int64))
    nodes = np.arange(recording.requests + 1, dtype=np.int32)
    parent = np.zeros(len(nodes), np.int32)
    parent[0] = -1
    return TextTree(parent, np.zeros(len(nodes), np.int64), np.append(0, lengths), nodes[1:])


def _keys(recording: RouterRecording) -> list[str]:
    """Each prompt's session key; its own where it was sent without one."""
    keys = [f"prompt {prompt}" for prompt in range(recording.requests)]
    if recording.router.policy in ("manual", "consistent_hashing"):
        for event in recording.events:
            if event[0] == "send" and len(event) > 3:
                keys[event[1]] = str(event[3])
    return keys


def _sessions(recording: RouterRecording) -> np.ndarray:
    return np.unique(_keys(recording), return_inverse=True)[1].astype(np.int32)


def _hashes(recording: RouterRecording) -> np.ndarray:
    try:
        return blake3.first_words([key.encode() for key in _keys(recording)])
    except ValueError as error:
        raise RouterRecordingError.at(str(error), path=recording.path, key="events") from None
