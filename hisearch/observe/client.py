"""Asks servers by HTTP GET, and by nothing else: no redirects, bounded answers, a time limit.

The token goes into the ``Authorization`` header; it is never written or printed.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisearch.observe.prometheus import MAX_BYTES
from hisearch.observe.reading import Answer

#: Seconds until a server counts as silent.
TIMEOUT_S = 10.0


class ServerError(ValueError):
    """A server that cannot be asked, or that answers something else; the message names it and what was expected."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True)
class Client:
    """Asks one server. url: without a path, user or password. headers: sent along; not shown."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: Path | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{self.url}: expected an address such as http://10.0.0.7:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ServerError(f"{parts.scheme}://{parts.hostname}: expected no user, query or fragment; give --token")

    def opener(self) -> urllib.request.OpenerDirector:
        """Opens addresses without proxies and redirects.

        Raises:
            ServerError: the file of certificates cannot be used.
        """
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), urllib.request.ProxyHandler({})]
        if self.url.startswith("https"):
            try:
                context = ssl.create_default_context(cafile=str(self.ca) if self.ca is not None else None)
            except (OSError, ssl.SSLError) as error:
                raise ServerError(f"{self.ca}: cannot be used as certificates: {error}") from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Answer:
        """The answer to a GET; status 0 with the reason where none came."""
        request = urllib.request.Request(self.url.rstrip("/") + path, headers=dict(self.headers), method="GET")
        try:
            with self.opener().open(request, timeout=self.timeout_s) as response:
                body = response.read(MAX_BYTES + 1)
                if len(body) > MAX_BYTES:
                    return Answer(0, f"more than {MAX_BYTES:,} bytes")
                return Answer(response.status, body.decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.reason)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            return Answer(0, str(reason) or type(error).__name__)


def headers_of(token: str | None, headers: tuple[str, ...] | list[str] = ()) -> dict[str, str]:
    """Headers of a token and of ``NAME: VALUE``.

    Raises:
        ServerError: a header has no colon, or holds line breaks; its value is not shown.
    """
    made = {"Authorization": f"Bearer {token}"} if token else {}
    for header in headers:
        name, colon, value = header.partition(":")
        if not (name.strip() and colon) or any(character in header for character in "\r\n"):
            raise ServerError(f"header {name.strip()[:20]!r}: expected NAME: VALUE in one line")
        made[name.strip()] = value.strip()
    return made
