"""Step costs of a (model, hardware, parallelism, dtype, engine): small tables that a kernel reads in nanoseconds.

Notation
    T   tokens in a step (decodes count one each)
    S   sequences that sample a token in a step
    new, cached   tokens of one prompt chunk computed in this step, tokens of the same sequence before it
    P     tokens of all prompt chunks of a step
    n, c  decoding sequences, sum over them of the context read (tokens before the new one, plus one)
    m     longest of these contexts

    step_s = max(device_s, floor_s)
    device_s = host_s + host_per_sequence_s * sequences
             + token_s[T] + sequence_s[S]
             + prompt_s[P]                                            where P > 0
             + sum over chunks of chunk_s(new, cached, P)
             + skew_s[n] * (m - c / n) + decode_s(n, c)
             + draft_s                                                where tokens are drafted
             (where ranks share prompts, ``SharedPrompts`` replaces token_s[T] of steps with prompts)
    floor_s  = floor.step_s + floor.per_sequence_s * sequences + launches(T, P)

    chunk_s  = new * (cached + (new + 1) / 2) * rate, rate bilinear in a table over (P, cached)
    decode_s = bilinear in a table over (n, c)

A chunk's rate depends on P, the prompt tokens of the step. Several prompts fill the accelerator like one of their total
length, while each attends to its own context alone.

``prompt_s`` is a further cost of a step with prompts, whatever their number.

``floor`` is the host's own time for a step: forming the batch, preparing inputs, launching kernels, reading results. An
engine that overlaps host and device prepares one step while the device runs another, so a step takes the longer of
both. ``launches`` is ``floor.eager_s`` where no CUDA graph holds the step (T > graph_tokens), ``floor.pieces_s`` where
piecewise graphs do (P > 0), and 0 where a single graph does.

``skew_s`` is the cost of unequal contexts beyond a batch of their mean: attention kernels that give a sequence to one
group of threads end with the longest. It is constant while the same sequences decode.

In a mixed step (prompt chunks and decodes) ``mixed_decode_s`` replaces ``decode_s``: kernels for prompts treat decodes
differently from kernels for decodes alone, and the added time depends on the prompts. The longest decode ends later
than the others by the delay it would have as the only decode in the step, or by a share ``late`` of that delay:

    mixed_decode_s(P, K, n, u) + late(n, f, c) * (mixed_decode_s(P, K, 1, l) - mixed_decode_s(P, K, 1, u))
                         + mixed_decode_s(P, K, 1, m - 1) - mixed_decode_s(P, K, 1, l), with
    K = max(sum over chunks of new * (cached + (new + 1) / 2) / P - (P + 1) / 2, 0)
    u = c / n - 1
    f = v / (v + (m - c / n)^2), v: the contexts' variance
    l = min(m - 1, u * r / (1 + (r - 1) * f)), r: of ``late``

K is the cached tokens of a single chunk of P tokens with the same attention work. f is the share of long contexts in a
batch of two lengths with the same mean, variance and longest. One long context ends behind all others; many fill the
accelerator and are in the mean already. At large c, caches fall short. ``late`` was measured on batches whose long
contexts are r times the short ones; the excess of still longer ones is fully exposed. ``mixed_decode_s`` and ``late``
are linear along each axis between their knots, which are ``octaves``; ``late`` is flat beyond them.

With drafted tokens a decode computes its newest token and drafts behind it, and samples at each: all of them count in T
and in S, and in the context that it reads. The drafter then runs k times, over all tokens of the step and over one of
each sequence after that. A share q of the model's layers, it reads what they read, by tables d of its own:

    draft_s = q * attention of the step + d.token_s[T] + d.sequence_s[N]
            + (k - 1) * (q * decode_s(N, C) + d.token_s[N] + d.sequence_s[N])
    N, C  sequences in the step, the context that they read together, each at its end

Knots of both tables are ``tokens_knot(i)`` (see ``knots``). Beyond ``len(token_s)``, ``len(sequence_s)``,
``len(prompt_s)`` and the last knots of ``decode_s`` the last slope continues; ``chunk_rate`` is flat beyond its last
knots.
Energy has the same form, in joules (``EnergyCosts`` is a ``StepCosts`` whose figures are joules above idle).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.served_errors import ServedErrors
from hisearch.specs.machines.devices import DeviceKind


class LateCosts(NamedTuple):
    """How much later unequal contexts end in mixed steps (see the module's notation).

    shares: ``late``, shape (``late_octaves`` of n, of f, of c).
    ratio: r, above 1.
    """

    shares: F8
    ratio: float


class StepCosts(NamedTuple):
    """Tables of one worker's step cost in seconds (see the module's notation).

    host_s, host_per_sequence_s: host time per step and per sequence in it that the device waits for.
    token_s: shape (T_max + 1,), token-wise operators and collectives of all layers, by tokens in the step;
        ``token_s[0] = 0``.
    sequence_s: shape (S_max + 1,), LM head and sampling, by sequences that sample; ``sequence_s[0] = 0``.
    chunk_rate: shape (len(knots new), len(knots cached)), seconds per unit of attention work, all layers.
    decode_s: shape (len(knots n), len(knots c)), seconds of decode attention, all layers; row 0 is 0.
    mixed_decode_s: shape (octaves of P, of K, of n, of c / n), seconds that decodes add to a mixed step, all layers;
        None: as ``decode_s``.
    skew_s: shape (>= 1,), seconds per token that the longest context exceeds the mean, by sequences, flat beyond the
        end; None: 0.
    late: None: 0. Needs ``mixed_decode_s``.
    prompt_s: shape (>= 2,), seconds by tokens of all prompt chunks; None: 0.
    floor: None: 0.
    draft: None: nothing is drafted.
    shared: None: no ranks share prompts.
    """

    host_s: float
    host_per_sequence_s: float
    token_s: F8
    sequence_s: F8
    chunk_rate: F8
    decode_s: F8
    mixed_decode_s: F8 | None = None
    skew_s: F8 | None = None
    late: LateCosts | None = None
    prompt_s: F8 | None = None
    floor: HostFloor | None = None
    draft: DraftCosts | None = None
    shared: SharedPrompts | None = None


class SharedPrompts(NamedTuple):
    """What steps with prompts cost where ranks share their tokens (``workers.prompts``).

    A step takes as long as that of the rank with most tokens. ``chunk_rate`` is then that of shared chunks.

    ranks: that share.
    layout: index of ``knots.LAYOUTS``, how tokens are dealt to ranks.
    token_s: in place of that of ``StepCosts``, by tokens of the rank with most; shape (>= 2,).
    whole_rate: ``chunk_rate`` of batches that are not shared; None: all are.
    """

    ranks: int
    layout: int
    token_s: F8
    whole_rate: F8 | None = None


class DraftCosts(NamedTuple):
    """What drafting adds to a step (see the module's notation).

    tokens: k, drafted for every sequence in a step, at least 1.
    share: q, layers that a draft passes through over those of the model, above 0.
    token_s, sequence_s: of a pass of the drafter, as ``StepCosts`` has them of a step.
    own_s, shared_s: ``token_s`` of several attention groups, as ``LockstepCosts`` has it; None for a single group.
    """

    tokens: int
    share: float
    token_s: F8
    sequence_s: F8
    own_s: F8 | None = None
    shared_s: F8 | None = None


class HostFloor(NamedTuple):
    """The host's seconds for a step, a lower bound of the step (see the module's notation).

    step_s, per_sequence_s: of every step, and of each sequence in it.
    pieces_s: launches of a step with prompts of up to ``graph_tokens`` tokens.
    eager_s: launches of any longer step.
    """

    step_s: float = 0.0
    per_sequence_s: float = 0.0
    pieces_s: float = 0.0
    eager_s: float = 0.0
    graph_tokens: int = 0

    def seconds(self, sequences: float, tokens: int, *, prompts: bool) -> float:
        """Seconds of a step of ``tokens`` tokens of ``sequences`` sequences; ``prompts``: whether it has chunks."""
        total = self.step_s + self.per_sequence_s * sequences
        if tokens > self.graph_tokens:
            return total + self.eager_s
        return total + self.pieces_s if prompts else total

    def scaled(self, step: float, launches: float) -> HostFloor:
        """Step and sequence times multiplied by ``step``, launches by ``launches``."""
        return self._replace(
            step_s=step * self.step_s, per_sequence_s=step * self.per_sequence_s,
            pieces_s=launches * self.pieces_s, eager_s=launches * self.eager_s,
        )  # fmt: skip


class FrontEnd(NamedTuple):
    """Seconds between a client and the engine's scheduler; they lengthen no step.

    request_s, prompt_token_s: from the client's send until the scheduler has the prompt, per request and per prompt
        token.
    read_s: share of ``request_s`` that one process spends on one request at a time, as it does all ``prompt_token_s``.
    stream_s: per generated token until the client has it, one token after another.
    ttft_factor: on a request's whole TTFT, of what steps do not explain; 1 but in draws of uncertain inputs.
    """

    request_s: float = 0.0
    read_s: float = 0.0
    prompt_token_s: float = 0.0
    stream_s: float = 0.0
    ttft_factor: float = 1.0

    def taking(self, share: float) -> FrontEnd:
        """All of it in ``share`` of the time."""
        return FrontEnd(*(share * each_s for each_s in self[:-1]))._replace(ttft_factor=self.ttft_factor)


class LockstepCosts(NamedTuple):
    """``token_s`` of a worker with several attention groups, split in two: seconds by tokens of one group.

    token_s[T] = own_s[T] + shared_s[padded T] where all groups have T tokens; both of shape (T_max + 1,).

    own_s: work of a single group.
    shared_s: joint work of all groups with that many tokens each; unequal groups count at their mean, unpadded.
    graph_batches: tokens that CUDA graphs pad to, rising. Groups within the largest are padded to the fullest group's.
    by_kind_s: shape (3, T_max + 1), added to steps in which all groups decode, all have prompts, and some have prompts;
        None: nothing. See ``workers.overlap`` and ``workers.gathered_prompts``.
    """

    own_s: F8
    shared_s: F8
    graph_batches: tuple[int, ...] = ()
    by_kind_s: F8 | None = None


def lockstep_costs(token_s: F8, shared_s: F8, graph_batches: Sequence[int]) -> LockstepCosts:
    """Split ``token_s``. Its small entries are padded to CUDA graphs; those of ``shared_s`` are not."""
    tokens = np.arange(len(token_s))
    sizes = np.asarray(graph_batches, dtype=np.int64)
    if len(sizes):
        at = np.searchsorted(sizes, tokens)
        tokens = np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], tokens)
    padded = np.interp(tokens, np.arange(len(shared_s)), shared_s)
    own_s = np.concatenate(([0.0], np.maximum(token_s - padded, 0.0)[1:]))
    return LockstepCosts(own_s, shared_s, tuple(graph_batches))


@dataclass(frozen=True)
class CompiledCosts:
    """Costs with their known error and range (law L8).

    components, idle_w_by_component: share of each component in ``joules`` and ``idle_w``; empty where unknown.
    lockstep: of a worker with several attention groups; None for a single group.
    regime_errors: by regime of a step (prefill, decode, mixed), where the profile states them; else relative_error.
    front_end: a client's wait outside the engine.
    served: errors on held-out served runs; None where none was measured.
    """

    seconds: StepCosts
    joules: StepCosts
    idle_w: float
    profile: str
    evidence: str
    relative_error: float
    warnings: tuple[str, ...] = ()
    components: Mapping[str, StepCosts] = field(default_factory=dict)
    idle_w_by_component: Mapping[str, float] = field(default_factory=dict)
    lockstep: LockstepCosts | None = None
    regime_errors: Mapping[str, float] = field(default_factory=dict)
    front_end: FrontEnd = FrontEnd()  # noqa: RUF009  (frozen)
    served: ServedErrors | None = None

    @property
    def prompt_seconds(self) -> StepCosts:
        """``seconds`` of steps in which all attention groups have prompts (``LockstepCosts.by_kind_s``)."""
        if self.lockstep is None or self.lockstep.by_kind_s is None:
            return self.seconds
        token_s = self.seconds.token_s
        return self.seconds._replace(token_s=token_s + self.lockstep.by_kind_s[1][: len(token_s)])

    @property
    def attached(self) -> tuple[str, ...]:
        """Components that are attached devices."""
        return tuple(name for name in self.components if name in get_args(DeviceKind))

    @property
    def attached_joules(self) -> StepCosts | None:
        """What attached devices have in ``joules``, together; None without them."""
        parts = [self.components[name] for name in self.attached]
        if not parts:
            return None
        tables = zip(*(part[2:] for part in parts), strict=True)
        added = [None if of[0] is None else np.asarray(sum(of)) for of in tables]
        return StepCosts(0.0, 0.0, **dict(zip(StepCosts._fields[2:], added, strict=True)))  # type: ignore[arg-type]

    @property
    def link_joules(self) -> StepCosts | None:
        """What links between devices have in ``joules``; None without them."""
        return self.components.get("link")

    @property
    def attached_idle_w(self) -> float:
        """What attached devices have in ``idle_w``."""
        return sum(self.idle_w_by_component.get(name, 0.0) for name in self.attached)
