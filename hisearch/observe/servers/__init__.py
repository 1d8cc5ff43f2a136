"""Running servers, an engine a file: which endpoints it answers, and what they mean.

Everything here is pure: answers in, facts and moments out; ``observe.client`` asks. To add an engine: a file with its
declaration ``SERVER = ServerPolicy(...)`` (``base.policies``) and three functions::

    recognises(metrics: Answer) -> bool          by what ``/metrics`` says
    facts(answers: Answers, arguments) -> Facts  arguments: of a file of launch arguments, which come after the server's
    moment(answers: Answers, at_s: float) -> Moment

Names of metrics and fields stand in the engines' sources, which each file states. Nothing else lists the engines.

Imports ``base`` and modules of ``observe``.
"""

from __future__ import annotations

import importlib
from typing import Any

from hisearch.base.policies import SERVERS
from hisearch.observe.reading import Answer


def module_of(engine: str) -> Any:
    """The module that reads servers of an engine."""
    return importlib.import_module(SERVERS.modules[engine])


def engine_of(metrics: Answer) -> str | None:
    """The engine whose metrics these are; None where it is none that is known."""
    return next((name for name in SERVERS if module_of(name).recognises(metrics)), None)
