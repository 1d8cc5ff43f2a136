"""Writes the tables of policies in docs/cluster.md and docs/tiers.md, from the policies' declarations.

Usage::

    python docs/generate_policies.py --write    # writes the tables between their marks
    python docs/generate_policies.py --check    # exits with 1 where a page differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hisearch.base.policies import EVICTIONS, ROUTERS, SIGHTS, Parameter, RouterPolicy
from hisearch.base.router_rules import MODELLED_ROUTERS

DOCS = Path(__file__).resolve().parent
BEGIN = "<!-- {}: written by docs/generate_policies.py from declarations; `make docs` writes it again. -->\n"
END = "<!-- {}: end. -->\n"
#: What a router sent, which it knows for as long as the policy remembers it.
_SENT = frozenset({"prompts", "prefills", "lengths"})


def _default(policy: RouterPolicy, name: str) -> Parameter:
    return next(parameter for parameter in policy.parameters if parameter.name == name)


def _how_old(policy: RouterPolicy) -> str:
    seen = [f"`{policy.age}`, {_default(policy, policy.age).default:g} s"] if policy.age else []
    if not seen and not _SENT.issuperset(policy.sees):
        seen = ["now"]
    return "; ".join([*seen, *([policy.remembers] if policy.remembers else [])])


def routers() -> Iterator[str]:
    """The table of routers: what each decides by, how old that is, and what a request costs."""
    yield "| policy | of | decides by | how old | cost of a request |\n| --- | --- | --- | --- | --- |\n"
    for name, policy in ROUTERS.items():
        product = f"{policy.product} {MODELLED_ROUTERS[policy.product][-1]}" if policy.product else ""
        seen = "; ".join(SIGHTS[sight] for sight in policy.sees) or "nothing"
        yield f"| `{name}` | {product} | {seen} | {_how_old(policy)} | {policy.cost} |\n"


def evictions() -> Iterator[str]:
    """The table of eviction policies that a store may have."""
    yield "| `eviction` | goes first | parameters | SGLang's own too |\n| --- | --- | --- | --- |\n"
    for name, policy in EVICTIONS.items():
        if policy.stores:
            parameters = ", ".join(f"`{parameter.name}`" for parameter in policy.parameters)
            yield f"| `{name}` | {policy.summary[:-1]} | {parameters} | {'yes' if policy.engine else ''} |\n"


TABLES = (("cluster.md", "routers", routers), ("tiers.md", "evictions", evictions))


def written(text: str, mark: str, rows: Iterator[str]) -> str:
    """A page with its table between the marks of ``mark`` written anew.

    Raises:
        ValueError: the page lacks a mark.
    """
    begin, end = BEGIN.format(mark), END.format(mark)
    head, _, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not closed:
        raise ValueError(f"expected the lines {begin!r} and {end!r}")
    return f"{head}{begin}\n{''.join(rows)}\n{end}{tail}"


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    status = 0
    for page, mark, rows in TABLES:
        path = DOCS / page
        before = path.read_text(encoding="utf-8")
        after = written(before, mark, rows())
        if "--write" in arguments:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"docs/{page} is not what the policies declare: python docs/generate_policies.py --write")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
