"""Workers that hold each request until they are told to answer, and a client of the router; HTTP on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

_MODEL = "mock"
#: Answers to what a router asks of a worker besides requests.
_ANSWERS: dict[str, Any] = {
    "/health": {}, "/health_generate": {}, "/flush_cache": {},
    "/get_model_info": {"is_generation": True},
    "/model_info": {"is_generation": True},
    "/get_server_info": {"served_model_name": _MODEL, "tp_size": 1, "dp_size": 1},
    "/server_info": {"served_model_name": _MODEL, "tp_size": 1, "dp_size": 1},
    "/v1/models": {"object": "list", "data": [{"id": _MODEL, "object": "model", "owned_by": "mock"}]},
}  # fmt: skip

_GENERATING = ("/generate", "/v1/chat/completions")


class Worker:
    """A worker: tells ``arrived(worker)`` of each request, and answers it once its event is set.

    load: tokens that it says it holds; None: it does not answer ``/get_load``. ``polled`` is told of each such call.
    ready: what a router asks besides is answered from then on.
    """

    def __init__(
        self, number: int, arrived: Callable[[Worker, asyncio.Event], None], polled: Callable[[Worker], None]
    ) -> None:
        self.number = number
        self.port = 0
        self.load: int | None = 0
        self.ready = asyncio.Event()
        self._arrived = arrived
        self._polled = polled
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """As the router knows it."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _held(self) -> None:
        """Hold a request until it is to be answered."""
        done = asyncio.Event()
        self._arrived(self, done)
        await done.wait()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        """Answer as a stream: its head at once, its end when told."""
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await self._held()
        end = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith((b"GET", b"POST")):
                    break  # The router tries gRPC too.
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                body = await reader.readexactly(_length(head))
                if path in _GENERATING and json.loads(body).get("stream"):
                    await self._stream(writer)
                    continue
                status, answer = await self._answer(path)
                writer.write(_response(status, answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str) -> tuple[int, Any]:
        if path in _ANSWERS:
            await self.ready.wait()
            return 200, _ANSWERS[path]
        if path == "/get_load":
            self._polled(self)
            if self.load is None:
                return 404, {}
            return 200, [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": self.load}]
        if path not in _GENERATING:
            return 404, {}
        await self._held()
        return 200, {"text": "", "meta_info": {"id": "0", "prompt_tokens": 1, "completion_tokens": 1}, "choices": []}


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _response(status: int, answer: Any) -> bytes:
    body = json.dumps(answer).encode()
    return (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )


def _unchunked(body: bytes) -> bytes:
    """A body without the lengths of its chunks."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(parts)


async def call(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None,
    begun: asyncio.Event | None = None,
) -> tuple[int, Any]:  # fmt: skip
    """Status and JSON of an answer of the router; None where it is not JSON. ``begun``: set at its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", f"content-length: {len(data)}"]
        lines += ["content-type: application/json"] + [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        if begun is not None:
            begun.set()
        text = _unchunked(await reader.read()) if b"chunked" in head.lower() else await reader.read()
        try:
            return int(head.split(b" ", 2)[1]), json.loads(text)
        except ValueError:
            return int(head.split(b" ", 2)[1]), None
    finally:
        writer.close()
