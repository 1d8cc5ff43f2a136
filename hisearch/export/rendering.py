"""Templates of the files that an export writes."""

from __future__ import annotations

import math
import re
import shlex
from functools import cache
from typing import Any

import jinja2
import yaml

from hisearch.specs.wording import counted, listed
from hisearch.specs.yaml_nodes import dump_yaml


class _FlowDumper(yaml.SafeDumper):
    """Values on one line, with text always quoted, so that no text is read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors: a value may occur twice."""
        return True


_FlowDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, '"'))


@cache
def _environment() -> jinja2.Environment:
    """Shell, Markdown and YAML, so nothing is HTML-escaped; words pass ``q`` or ``word``, text ``line``, YAML ``y``."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hisearch.export"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "q": lambda value: shlex.quote(str(value)),
        "word": shell_word,
        "line": one_line,
        "y": flow_yaml,
        "number": lambda value: f"{value:,.6g}",
        "listed": lambda parts: listed(list(parts)),
        "counted": counted,
        "resource_name": resource_name,
        "unexpanded": unexpanded,
    }
    return environment


def render(template: str, **values: Any) -> str:
    """The text of a template."""
    return _environment().get_template(template).render(**values)


def render_notes(template: str, **values: Any) -> list[str]:
    """The lines of a template that are not empty: one sentence or more each."""
    return [line for line in render(template, **values).split("\n") if line]


def render_yaml(template: str, **values: Any) -> str:
    """The YAML documents of a template, formatted as all YAML that is written."""
    return "---\n".join(dump_yaml(document) for document in yaml.safe_load_all(render(template, **values)))


def source(template: str) -> str:
    """The text of a template, unrendered."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, template)[0]


def shell_word(text: str) -> str:
    """A word of a script: the shell expands variables in it; everything else is literal."""
    if "$" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return f'"{escaped}"'


def one_line(text: str) -> str:
    """Printable characters on a single line, safe in a comment or in Markdown code."""
    return "".join(c if c.isprintable() else " " for c in str(text)).replace("`", "'")


def unexpanded(word: str) -> str:
    """A word in which Kubernetes expands no variables."""
    return word.replace("$(", "$$(")


def resource_name(text: str) -> str:
    """A name for Kubernetes and Compose: lower-case letters, digits and hyphens, at most 40 of them (RFC 1123)."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return plain if plain and plain[0].isalpha() else f"p-{plain}".strip("-")


def flow_yaml(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.dump([value], Dumper=_FlowDumper, default_flow_style=True, width=math.inf, sort_keys=False)
    return str(text).strip()[1:-1]
