"""Keys of a ``config.json``."""

from __future__ import annotations

from typing import Any

from hisearch.specs.wording import described


class Config:
    """Keys of a ``config.json``; collects faults: keys that are missing or no integers."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.faults: list[str] = []

    def need(self, *names: str) -> int:
        """The integer under the first of ``names`` that is present; 1, and a fault, where none is."""
        for name in names:
            if self.data.get(name) is not None:
                return self.count(name, 1)
        self.faults.append(f"{' or '.join(names)} is missing")
        return 1

    def count(self, name: str, default: int) -> int:
        """The integer under ``name``; ``default`` where it is absent, null or, with a fault, no integer."""
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.faults.append(f"{name} is {described(value)}, expected an integer")
        return default

    def get(self, name: str, default: Any) -> Any:
        """Value of ``name``; ``default`` where it is absent or null."""
        value = self.data.get(name)
        return default if value is None else value
