"""Watches servers for a while: a moment of each, again and again, and what came in between.

Nothing is lost: a server that stops answering, begins anew or answers something else leaves what it said before, and a
note. Counters that fall have begun anew (Prometheus' own rule); what came between the last look and the end of the old
process is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hisearch.base.policies import SERVERS
from hisearch.observe.client import Client, ServerError
from hisearch.observe.prometheus import Histogram, MetricsError
from hisearch.observe.reading import Answer, Facts, Moment, Step, Value
from hisearch.observe.servers import engine_of, module_of
from hisearch.specs.wording import counted, listed

#: Least seconds between two looks at a server.
LEAST_INTERVAL_S = 0.2
#: Seconds until a server's settings count as not told.
SETTINGS_TIMEOUT_S = 60.0


@dataclass
class Watched:
    """One server: what it says of itself, its moments, and what went wrong. number: from 1, as messages call it."""

    number: int
    client: Client
    facts: Facts
    moments: list[Moment] = field(default_factory=list)
    unanswered: int = 0
    restarts: int = 0
    last_error: str = ""

    def look(self, now: float) -> None:
        """Take a moment."""
        module = module_of(self.facts.engine)
        try:
            answers = {path: self.client.get(path) for path in SERVERS[self.facts.engine].figures}
            first = answers[SERVERS[self.facts.engine].figures[0]]
            if not first.is_good:
                raise ServerError(f"HTTP {first.status} {first.text}" if first.status else first.text)
            moment = module.moment(answers, now)
        except (ServerError, MetricsError, ValueError, TypeError, KeyError) as error:
            self.unanswered += 1
            self.last_error = str(error)
            return
        before = self.moments[-1].counters if self.moments else {}
        self.restarts += any(value < before.get(name, 0.0) for name, value in moment.counters.items())
        self.moments.append(moment)

    def notes(self) -> list[str]:
        """What went wrong, as sentences."""
        said = []
        looks = len(self.moments) + self.unanswered
        if self.unanswered:
            lost = f"{self.unanswered} of {counted(looks, 'look')} at server {self.number} were not answered"
            said.append(f"{lost} (last: {self.last_error}); figures are of the others")
        if self.restarts:
            times = "once" if self.restarts == 1 else f"{self.restarts} times"
            said.append(
                f"Server {self.number} began anew {times}: its counters fell; what it served just before is missing"
            )
        return said


@dataclass(frozen=True)
class Window:
    """What came between the first and the last moment of all servers, together.

    seconds: between them, the longest. counters: increases. gauges: (mean over time, largest), summed over servers but
    for ``kv_usage``, of which the mean and the largest of any server count. arrivals: requests that ended in each
    interval, (seconds, number). steps: of all servers that tell them.
    """

    seconds: float
    counters: Mapping[str, float]
    gauges: Mapping[str, tuple[float, float]]
    histograms: Mapping[str, Histogram]
    ended: tuple[tuple[float, float], ...]
    steps: tuple[Step, ...]


def find(number: int, client: Client, arguments: Mapping[str, Value]) -> Watched:
    """Ask a server what it is.

    Raises:
        ServerError: it does not answer, or is none of the known engines; says what was expected.
    """
    first = client.get("/metrics")
    engine = engine_of(first)
    if engine is None:
        raise ServerError(_not_known(client, first))
    # Collecting what a developer wants to know takes a busy server half a minute.
    patient = replace(client, timeout_s=SETTINGS_TIMEOUT_S)
    answers = {"/metrics": first} | {path: patient.get(path) for path in SERVERS[engine].settings}
    try:
        facts = module_of(engine).facts(answers, arguments)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"{client.url}: {engine}'s settings cannot be read: {error}") from None
    return Watched(number, client, facts)


def _not_known(client: Client, first: Answer) -> str:
    """Why a server cannot be watched."""
    if not first.status:
        return f"{client.url}: no answer: {first.text}"
    if first.status in (401, 403):
        return f"{client.url}/metrics: HTTP {first.status}: expected a token (--token) or header (--header) it accepts"
    for policy in SERVERS.values():
        if policy.needs and any(client.get(path).is_good for path in policy.settings):
            return f"{client.url}/metrics: HTTP {first.status}, no figures: where it is an engine, {policy.needs}"
    known = listed(list(SERVERS))
    said = "other metrics" if first.is_good else f"HTTP {first.status} {first.text}"
    return f"{client.url}/metrics: {said}; expected those of {known}. Name the engines, not the router in front of them"


def watch(
    servers: Sequence[Watched],
    seconds: float,
    interval_s: float,
    report: Callable[[float], None] = lambda passed_s: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Look at all servers every ``interval_s`` seconds, for ``seconds``.

    Args:
        servers: their moments are appended to.
        seconds: from the first look to the last.
        interval_s: between looks.
        report: is told the seconds passed.
        clock: seconds of a steady clock.
        sleep: waits so many seconds.

    Returns:
        False where it was interrupted from the keyboard; what was seen is kept.
    """
    began = clock()
    looks = max(int(seconds / max(interval_s, LEAST_INTERVAL_S)), 1)
    try:
        for look in range(looks + 1):
            wait_s = began + seconds * look / looks - clock()
            if wait_s > 0:
                sleep(wait_s)
            for server in servers:
                server.look(clock())
            report(min(clock() - began, seconds))
    except KeyboardInterrupt:
        return False
    return True


def window_of(servers: Sequence[Watched]) -> Window:
    """What came while they were watched.

    Raises:
        ServerError: no server answered twice.
    """
    seen = [server for server in servers if len(server.moments) > 1]
    if not seen:
        why = "; ".join(note for server in servers for note in server.notes()) or "each was seen once"
        raise ServerError(f"no server answered twice, so that nothing is known of what it did: {why}")
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    ended: list[tuple[float, float]] = []
    means: dict[str, list[float]] = {}
    largest: dict[str, list[float]] = {}
    for server in seen:
        for before, after in zip(server.moments[:-1], server.moments[1:], strict=True):
            for name, value in after.counters.items():
                rise = _rise(before.counters.get(name, 0.0), value)
                counters[name] = counters.get(name, 0.0) + rise
                if name == "requests":
                    ended.append((after.at_s - before.at_s, rise))
            for name, histogram in after.histograms.items():
                part = histogram.since(before.histograms.get(name))
                histograms[name] = histograms[name].plus(part) if name in histograms else part
        for name in {name for moment in server.moments for name in moment.gauges}:
            values = [moment.gauges[name] for moment in server.moments if name in moment.gauges]
            means.setdefault(name, []).append(float(np.mean(values)))
            largest.setdefault(name, []).append(max(values))
    gauges = {
        name: (float(np.mean(values)), max(largest[name])) if name == "kv_usage" else (sum(values), sum(largest[name]))
        for name, values in means.items()
    }
    return Window(
        seconds=max(server.moments[-1].at_s - server.moments[0].at_s for server in seen),
        counters=counters,
        gauges=gauges,
        histograms=histograms,
        ended=tuple(ended),
        steps=_steps(seen),
    )


def _steps(servers: Sequence[Watched]) -> tuple[Step, ...]:
    """Steps of all moments but the first, whose were before the window; each once."""
    steps = []
    for server in servers:
        seen = {step.number for step in server.moments[0].steps}
        for moment in server.moments[1:]:
            fresh = [step for step in moment.steps if step.number not in seen]
            seen |= {step.number for step in fresh}
            steps += fresh
    return tuple(steps)


def _rise(before: float, after: float) -> float:
    return after - before if after >= before else after
