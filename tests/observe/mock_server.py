"""A server on 127.0.0.1 that answers GETs as it is told, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded")
#: A body, or a status without one.
Reply = str | int


class MockServer:
    """Replies by path: the next of each list at every GET, the last one for ever. seen: (method, path, headers)."""

    def __init__(self, replies: Mapping[str, Sequence[Reply]]) -> None:
        self.replies = {path: list(bodies) for path, bodies in replies.items()}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""

    def reply(self, path: str) -> Reply:
        """The next reply of a path."""
        bodies = self.replies.get(path)
        if bodies is None:
            return 404
        return bodies.pop(0) if len(bodies) > 1 else bodies[0]


@contextmanager
def served(replies: Mapping[str, Sequence[Reply]]) -> Iterator[MockServer]:
    """A running server."""
    mock = MockServer(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mock.seen.append((self.command, self.path, dict(self.headers)))
            body = mock.reply(self.path)
            text = body.encode() if isinstance(body, str) else b""
            self.send_response(200 if isinstance(body, str) else body)
            if body == 302:
                self.send_header("Location", "http://127.0.0.1:1/stolen")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    mock.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield mock
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def vllm(*metrics: Reply, info: bool = True) -> dict[str, list[Reply]]:
    """Replies of a vLLM server; metrics: of each look, one more than looks since it is first asked what it is."""
    replies: dict[str, list[Reply]] = {
        "/metrics": list(metrics),
        "/version": ['{"version": "0.32.0"}'],
        "/v1/models": ['{"data": [{"id": "tiny", "root": "tiny", "max_model_len": 4096}]}'],
    }
    if info:
        replies["/server_info?config_format=json"] = [recorded("vllm-0.32.0-server_info.json")]
    return replies


def recorded(name: str) -> str:
    """Text of a recorded answer."""
    return (RECORDED / name).read_text(encoding="utf-8")
