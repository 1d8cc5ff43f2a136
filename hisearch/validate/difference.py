"""The first step at which a simulation and an engine differ, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hisearch.specs.wording import counted
from hisearch.validate.recording import EngineRecording, Id
from hisearch.validate.replay import Decision, Run

#: Times closer than this are equal, seconds.
TOLERANCE_S = 1e-6
#: Sentences about one step.
_MOST_SENTENCES = 4


@dataclass(frozen=True)
class FirstDifference:
    """The first difference between two runs.

    Attributes:
        step: index of the step, from 0.
        what: the difference as text.
        differs: which of ``batch``, ``lost``, ``kind``, ``start_s``, ``scheduled_s`` differ; ``missing`` or ``extra``
            if only the engine or only the simulation has the step.
        engine, simulated: the step itself, None without one: ``start_s``, ``scheduled_s``, ``kind``,
            ``batch`` of [id, computed before, scheduled now], ``lost`` (preempted or retracted), ``free_tokens`` and
            ``evictable_tokens`` after it was formed; None where not recorded.
        state: of both when it was formed: ``clock_s``, ``running`` and ``waiting`` ids in order of
            arrival, ``free_tokens`` and ``evictable_tokens`` as of the step before, and for every affected request
            its lengths, ``known`` (prompt and generated), ``in_flight`` and ``computed`` tokens and ``preemptions``.
    """

    step: int
    what: str
    differs: list[str]
    engine: dict[str, Any] | None
    simulated: dict[str, Any] | None
    state: dict[str, Any]


@dataclass
class _Live:
    """State of a request after the steps so far. made_at: end of every step that makes it a token, seconds."""

    computed: int = 0
    running: bool = False
    preemptions: int = 0
    made_at: list[float] = field(default_factory=list)

    def generated(self, now_s: float) -> int:
        return sum(end_s <= now_s for end_s in self.made_at)


def differing(engine: Decision, simulated: Decision) -> list[str]:
    """Names of the fields that differ between two steps; see ``FirstDifference``."""
    fields = []
    if engine.batch != simulated.batch:
        fields.append("batch")
    if engine.lost != simulated.lost:
        fields.append("lost")
    if engine.kind != simulated.kind:
        fields.append("kind")
    if not abs(engine.start_s - simulated.start_s) <= TOLERANCE_S:
        fields.append("start_s")
    both_recorded = engine.scheduled_s is not None and simulated.scheduled_s is not None
    if both_recorded and not abs((engine.scheduled_s or 0.0) - (simulated.scheduled_s or 0.0)) <= TOLERANCE_S:
        fields.append("scheduled_s")
    return fields


def equal_steps(engine: Run, simulated: Run) -> int:
    """The number of equal steps, compared by index."""
    return sum(
        not differing(recorded, replayed) for recorded, replayed in zip(engine.steps, simulated.steps, strict=False)
    )


def first_difference(recording: EngineRecording, engine: Run, simulated: Run) -> FirstDifference | None:
    """The first step that differs, is missing or is extra; None where all are equal."""
    step = next(
        (
            index
            for index, (recorded, replayed) in enumerate(zip(engine.steps, simulated.steps, strict=False))
            if differing(recorded, replayed)
        ),
        min(len(engine.steps), len(simulated.steps)),
    )
    engine_step = engine.steps[step] if step < len(engine.steps) else None
    simulated_step = simulated.steps[step] if step < len(simulated.steps) else None
    if engine_step is None and simulated_step is None:
        return None
    if engine_step is not None and simulated_step is not None:
        differs = differing(engine_step, simulated_step)
    else:
        differs = ["extra"] if engine_step is None else ["missing"]
    explained = _Explanation(recording, simulated.steps[:step], engine_step, simulated_step)
    return FirstDifference(
        step,
        explained.what(differs),
        differs,
        explained.shown(engine_step),
        explained.shown(simulated_step),
        explained.state(),
    )


class _Explanation:
    """One differing step, with the equal steps before it."""

    def __init__(
        self, recording: EngineRecording, before: list[Decision], engine: Decision | None, simulated: Decision | None
    ) -> None:
        self.recording = recording
        self.before = before
        self.engine = engine
        self.simulated = simulated
        forms = [form for form in (simulated, engine) if form is not None]
        self.clock_s = next((form.scheduled_s for form in forms if form.scheduled_s is not None), forms[0].start_s)
        self.live = [_Live() for _ in recording.requests]
        for step in before:
            self._apply(step)

    def _apply(self, step: Decision) -> None:
        for index in step.lost:
            live = self.live[index]
            live.running, live.computed = False, 0
            live.preemptions += 1
            if self.recording.engine == "sglang":
                # A token still in flight is dropped with the request's KV.
                live.made_at = [end_s for end_s in live.made_at if end_s <= (step.scheduled_s or step.start_s)]
        for index, computed, tokens in step.batch:
            live, row = self.live[index], self.recording.requests[index]
            live.running, live.computed = True, computed + tokens
            if live.computed >= row.input_tokens + len(live.made_at) and len(live.made_at) < row.output_tokens:
                live.made_at.append(step.end_s)

    def name(self, index: int) -> Id:
        return self.recording.requests[index].id

    def shown(self, step: Decision | None) -> dict[str, Any] | None:
        if step is None:
            return None
        return {
            "start_s": step.start_s,
            "scheduled_s": step.scheduled_s,
            "kind": step.kind or None,
            "batch": [[self.name(index), computed, tokens] for index, computed, tokens in step.batch],
            "lost": [self.name(index) for index in step.lost],
            **_pool(step),
        }

    def state(self) -> dict[str, Any]:
        unfinished = [
            index
            for index, (live, row) in enumerate(zip(self.live, self.recording.requests, strict=True))
            if row.arrival_s <= self.clock_s and live.generated(self.clock_s) < row.output_tokens
        ]
        return {
            "clock_s": self.clock_s,
            "running": [self.name(index) for index in unfinished if self.live[index].running],
            "waiting": [self.name(index) for index in unfinished if not self.live[index].running],
            **_pool(self.before[-1] if self.before else None),
            "requests": {str(self.name(index)): self._request(index) for index in self._affected_requests()},
        }

    def _request(self, index: int) -> dict[str, Any]:
        live, row = self.live[index], self.recording.requests[index]
        generated = live.generated(self.clock_s)
        return {
            "arrival_s": row.arrival_s,
            "priority": row.priority,
            "input_tokens": row.input_tokens,
            "output_tokens": row.output_tokens,
            "known": row.input_tokens + generated,
            "in_flight": len(live.made_at) - generated,
            "computed": live.computed,
            "preemptions": live.preemptions,
        }

    def _affected_requests(self) -> list[int]:
        """Requests that are served or lost differently; without any, those at other places of the batch."""
        engine_shares, simulated_shares = (_shares(step) for step in (self.engine, self.simulated))
        requests = {
            index
            for index in {**engine_shares, **simulated_shares}
            if engine_shares.get(index) != simulated_shares.get(index)
        }
        lost, more = (set(step.lost) if step else set() for step in (self.engine, self.simulated))
        requests |= lost ^ more
        if not requests and list(engine_shares) != list(simulated_shares):
            requests = {left for left, right in zip(engine_shares, simulated_shares, strict=True) if left != right}
        return sorted(requests)

    # ---- words -----------------------------------------------------------------------------------------------------

    def what(self, differs: list[str]) -> str:
        sentences = list(self._sentences(differs))
        more = len(sentences) - _MOST_SENTENCES
        tail = [f"and {counted(more, 'further difference')}"] if more > 0 else []
        return "; ".join(sentences[:_MOST_SENTENCES] + tail)

    def _sentences(self, differs: list[str]) -> Iterator[str]:
        if self.simulated is None:
            yield "the simulation ends here, the engine goes on"
        elif self.engine is None:
            yield "the engine ends here, the simulation goes on"
        else:
            if "kind" in differs:
                yield f"the engine forms a {self.engine.kind or '?'} batch, the simulation a {self.simulated.kind} one"
            yield from self._losses(self.engine, self.simulated)
            if "batch" in differs:
                yield from self._format_shares(self.engine, self.simulated)
            if "scheduled_s" in differs:
                yield self._late("is formed", self.engine.scheduled_s, self.simulated.scheduled_s)
            if "start_s" in differs:
                yield self._late("starts", self.engine.start_s, self.simulated.start_s)

    def _losses(self, engine: Decision, simulated: Decision) -> Iterator[str]:
        verb = "preempts" if self.recording.engine == "vllm" else "retracts"
        for index in engine.lost:
            if index not in simulated.lost:
                yield f"the engine {verb} {self.name(index)}, the simulation does not"
        for index in simulated.lost:
            if index not in engine.lost:
                yield f"the simulation {verb} {self.name(index)}, the engine does not"
        if engine.lost != simulated.lost and set(engine.lost) == set(simulated.lost):
            yield f"the same requests are {verb.removesuffix('s')}ed in another order"

    def _format_shares(self, engine: Decision, simulated: Decision) -> Iterator[str]:
        engine_shares, simulated_shares = _shares(engine), _shares(simulated)
        for index in dict.fromkeys((*engine_shares, *simulated_shares)):
            engine_share, simulated_share = engine_shares.get(index), simulated_shares.get(index)
            if engine_share == simulated_share:
                continue
            if simulated_share is None:
                assert engine_share is not None
                yield self._one_sided("engine", "simulation", index, engine_share)
            elif engine_share is None:
                yield self._one_sided("simulation", "engine", index, simulated_share)
            else:
                yield self._format_share(index, engine_share, simulated_share)
        if engine_shares == simulated_shares:
            place = next(
                at
                for at, (left, right) in enumerate(zip(engine_shares, simulated_shares, strict=True))
                if left != right
            )
            yield f"the same requests are in the batch in another order, from place {place + 1} on"

    def _one_sided(self, serving: str, passing: str, index: int, share: tuple[int, int]) -> str:
        computed, tokens = share
        amount = f"{counted(tokens, 'token')} behind {computed:,}"
        if self.live[index].running:
            return f"the {serving} goes on with {self.name(index)} ({amount}), the {passing} passes it over"
        return f"the {serving} admits {self.name(index)} ({amount}), the {passing} leaves it waiting"

    def _format_share(self, index: int, engine: tuple[int, int], simulated: tuple[int, int]) -> str:
        name = self.name(index)
        if engine[0] != simulated[0]:
            verb = "has computed" if self.live[index].running else "finds in the cache"
            return f"of {name} the engine {verb} {engine[0]:,} tokens, the simulation {simulated[0]:,}"
        return f"{name} gets {counted(engine[1], 'token')} from the engine, {simulated[1]:,} from the simulation"

    @staticmethod
    def _late(verb: str, engine_s: float | None, simulated_s: float | None) -> str:
        assert engine_s is not None
        assert simulated_s is not None
        late = simulated_s - engine_s
        return f"the simulated step {verb} {abs(late):.9f} s {'later' if late > 0 else 'earlier'}"


def _shares(step: Decision | None) -> dict[int, tuple[int, int]]:
    """(computed, scheduled) tokens by request, in batch order."""
    return {index: (computed, tokens) for index, computed, tokens in step.batch} if step else {}


def _pool(step: Decision | None) -> dict[str, int | None]:
    """Tokens after a step, of full attention's pool where window layers have another."""
    free, evictable = ((step and step.pool) or (None, None))[:2]
    return {"free_tokens": free, "evictable_tokens": evictable}
