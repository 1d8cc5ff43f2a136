"""Clients that take little time themselves: one that asks, and many whose answers never end."""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from refit.front_ends.clock import TOKENS

ENDLESS, HOST = 100_000, "127.0.0.1"


class Answer(NamedTuple):
    """The server's name of a request; when it was sent, and when its first and last tokens came; their messages."""

    name: str
    sent_s: float
    first_s: float
    last_s: float
    messages: int


class Asker:
    """Asks a server for completions of prompts drawn from ``tokenizer``."""

    def __init__(self, tokenizer: Path, port: int, seed: int = 0) -> None:
        from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]

        self._tokenizer, self._port, self._draw = Tokenizer.from_file(str(tokenizer)), port, random.Random(seed)

    def body(self, inputs: int, outputs: int) -> bytes:
        """A whole request, for ``outputs`` tokens behind a prompt of ``inputs``."""
        asked = {
            "model": "model", "prompt": self._tokenizer.decode([self._draw.choice(TOKENS) for _ in range(inputs)]),
            "max_tokens": outputs, "stream": True, "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        text = json.dumps(asked).encode()
        lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
        return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text

    def send(self, body: bytes) -> socket.socket:
        """Send a request by a connection of its own."""
        connection = socket.create_connection((HOST, self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(body)
        return connection

    def ask(self, inputs: int, outputs: int) -> Answer:
        """Send a request and wait for its answer."""
        body, name, first_s, last_s, messages, data = self.body(inputs, outputs), "", 0.0, 0.0, 0, b""
        sent_s = time.time()
        with self.send(body) as connection:
            while got := connection.recv(1 << 16):
                now, data = time.time(), data + got
                while b"\n\n" in data:
                    message, data = data.split(b"\n\n", 1)
                    _, found, text = message.partition(b"data: ")
                    if not found or text == b"[DONE]":
                        continue
                    part = json.loads(text)
                    if part["choices"]:
                        name, messages, last_s = part["id"], messages + 1, now
                        first_s = first_s or now
        return Answer(name, sent_s, first_s, last_s, messages)

    def burst(self, count: int, inputs: int) -> float:
        """Send ``count`` requests at once and wait for all answers; returns when they were sent."""
        bodies = [self.body(inputs, 2) for _ in range(count)]
        sent_s = time.time()
        for connection in [self.send(body) for body in bodies]:
            with connection:
                while connection.recv(1 << 16):
                    pass
        return sent_s


def drain(tokenizer: str, port: str, count: str) -> None:
    """Take ``count`` answers without end; says on stdout when all were sent."""
    asker, streams = Asker(Path(tokenizer), int(port), seed=1), selectors.DefaultSelector()
    for _ in range(int(count)):
        streams.register(asker.send(asker.body(64, ENDLESS)), selectors.EVENT_READ)
        time.sleep(0.02)
    print("all sent", flush=True)
    room = bytearray(1 << 18)
    while True:
        for key, _ in streams.select():
            key.fileobj.recv_into(room)  # type: ignore[union-attr]


if __name__ == "__main__":
    drain(*sys.argv[1:])
