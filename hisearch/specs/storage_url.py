"""URLs of the databases that store a study's trials, and how they are shown without secrets."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

#: How an address may begin.
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")

#: Parameters of libpq that hold no secret; all others are left out where an address is shown or kept.
_SHOWN_PARAMETERS = frozenset(
    {"application_name", "connect_timeout", "options", "sslmode", "sslcert", "sslkey", "sslrootcert"}
)  # fmt: skip

#: A password inside other text: between the user's colon and the host.
_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s/]*@")

_EXPECTED = "expected postgresql://USER@HOST:PORT/DATABASE"


def checked_storage_url(url: str) -> str:
    """Return ``url`` if it is that of a PostgreSQL database.

    Raises:
        ValueError: it is not. The message does not repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{_EXPECTED}, got an address that cannot be read") from None
    if parts.scheme not in SCHEMES:
        got = f"{parts.scheme}://…" if parts.scheme and "://" in url else "an address without a scheme"
        raise ValueError(f"{_EXPECTED}, got {got}; without one the run folder's study.db (SQLite) is written")
    if not parts.path.strip("/"):
        raise ValueError(f"{_EXPECTED}, got an address without a database")
    return url


def without_secrets(url: str) -> str:
    """``url`` as it may be shown and kept: without a password."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in parse_qsl(parts.query) if name in _SHOWN_PARAMETERS]
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=urlencode(shown), fragment=""))


def refuse_secrets(url: str) -> str:
    """Return ``url``, read from a document, if it holds no secrets.

    Raises:
        ValueError: it is not that of a PostgreSQL database, or may hold a password.
    """
    if without_secrets(checked_storage_url(url)) != url:
        raise ValueError(
            "an address with a password, or with parameters that may hold one, does not belong into a study, which is "
            "kept with the run; give it with --storage, or the password in PGPASSWORD or ~/.pgpass"
        )
    return url


def mask_passwords(text: str) -> str:
    """``text`` with the passwords of all addresses in it masked, for messages."""
    return _PASSWORD.sub(r"\1:***@", text)
