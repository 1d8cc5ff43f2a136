"""What to do about a file of no known format that is something else: a log without lengths, or rows in an object."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hisearch.traces.reading.text import lines, open_text

#: A request in an access log, as web servers, uvicorn and Envoy print it, or as a field of one in JSON.
_REQUEST = re.compile(r'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) \S+ HTTP/[\d.]+"|"(?:method|http_method)": ?"[A-Z]+"')
_FIRST_LINES = 50


def hint(path: Path, sample: Mapping[str, Any]) -> str:
    """What the file is and how to get a trace of it; "" where nothing is recognised.

    sample: fields of its first row; none where it has no rows.
    """
    for name, value in sample.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return f"its rows stand under {name}: write them one a line, as `jq -c '.{name}[]'` does"
    with open_text(path) as text:
        logged = any(_REQUEST.search(line) for line in itertools.islice(lines(text, path), _FIRST_LINES))
    if not logged:
        return ""
    return (
        "an access log without token counts: they cannot be guessed. Let the gateway or engine log them "
        "(docs/traces.md#logs), or describe the load of a running server with `hisearch observe`"
    )
