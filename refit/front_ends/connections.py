"""What a connection of its own takes of a request: a client as InferenceMAX's, and the same with connections kept."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from refit.front_ends.clients import HOST, Asker

#: Requests of a round for each in flight, and least of them; rounds of either kind, in turn.
PER_SLOT, LEAST, ROUNDS = 10, 250, 3


async def _answer(session: Any, url: str, prompt: bytes) -> float:
    """Seconds from sending a request to its first token; waits for the last."""
    sent_s, first_s = time.perf_counter(), 0.0
    async with session.post(url, data=prompt, headers={"Content-Type": "application/json"}) as response:
        async for line in response.content:
            if line.strip() and not first_s:
                first_s = time.perf_counter() - sent_s
    return first_s


async def _round(prompts: list[bytes], url: str, in_flight: int, *, kept: bool) -> float:
    """Mean seconds to the first token, of requests behind the first burst."""
    import aiohttp  # type: ignore[import-not-found, unused-ignore]

    places, waits = asyncio.Semaphore(in_flight), []

    def session() -> Any:
        return aiohttp.ClientSession(trust_env=not kept, connector=aiohttp.TCPConnector(limit=0) if kept else None)

    async def ask(prompt: bytes, shared: Any) -> None:
        async with places:
            if kept:
                waits.append(await _answer(shared, url, prompt))
                return
            async with session() as own:
                waits.append(await _answer(own, url, prompt))

    async with session() as shared:
        await asyncio.gather(*(ask(prompt, shared) for prompt in prompts))
    return statistics.mean(waits[in_flight:])


def connections(asker: Asker, port: int, in_flight: int, inputs: int, outputs: int) -> str:
    """A line of figures on closed loops of ``in_flight`` requests."""
    count, url = max(PER_SLOT * in_flight, LEAST), f"http://{HOST}:{port}/v1/completions"
    prompts = [asker.body(inputs, outputs).split(b"\r\n\r\n", 1)[1] for _ in range(count)]
    pairs = [
        [1e3 * asyncio.run(_round(prompts, url, in_flight, kept=kept)) for kept in (False, True)] for _ in range(ROUNDS)
    ]
    spread = (f"{statistics.mean(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in zip(*pairs, strict=True))
    return f"{in_flight} in flight, prompts of {inputs} tokens: {' and '.join(spread)} ms, connections new and kept"
