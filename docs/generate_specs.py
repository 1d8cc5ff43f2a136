"""Writes docs/specs.md: every kind of document and the catalogue that ships, from the spec models themselves.

Usage::

    python docs/generate_specs.py            # prints it
    python docs/generate_specs.py --write    # writes docs/specs.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hisearch.specs.base import API_VERSION
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.kinds import FOLDERS, KINDS, json_schema

FOLDER = Path(__file__).resolve().parent
TARGET = FOLDER / "specs.md"

Schema = dict[str, Any]

_KIND_OF = {model.__name__: kind for kind, model in KINDS.items()}

#: Sections that several kinds share; they are described once, at the end.
SHARED = ("Metadata", "Price", "Provenance", "Link")

#: Ends of names -> unit, the first that fits.
UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("usd_per_hour", "USD/hour"),
    ("usd_per_gib_hour", "USD per GiB and hour"),
    ("j_per_byte", "J/byte"),
    ("gib", "GiB"),
    ("s_per_ki_token", "seconds per 1,024 tokens"),
    ("_rps", "1/s"),
    ("_flops", "FLOP/s"),
    ("tokens", "tokens"),
    ("_bytes", "bytes"),
    ("seconds", "seconds"),
    ("_s", "seconds"),
    ("_w", "W"),
)

INTRODUCTION = f"""\
# Specs and catalogue

<!-- Written by docs/generate_specs.py from the spec models; `make docs` writes it again. -->

Every input is a YAML document of one *kind*:

```yaml
apiVersion: {API_VERSION}
kind: SLO
metadata: {{name: snappy}}
spec:
  terms:
    - {{metric: ttft_s, percentile: 95, at_most_s: 1.0}}
```

- **Names.** Where a document names another, write a catalogue name, or a path (anything with a slash, or ending in
  `.yaml`, `.yml` or `.json`). Names are looked up in the working directory's folders (`./slos`, `./profiles/models`,
  …), beside the file that names them, and in [the catalogue](#the-catalogue). `hisearch list` shows all that are
  found, `hisearch list Model` one kind.
- **Units** are part of a field's name: `_s` seconds, `_bytes`, `_tokens`, `_rps` requests per second. `8e10` is a
  number; nothing is parsed out of text such as `80GB`. 1 GiB is 2³⁰ bytes.
- **Strict.** An unknown key, a missing one or a value out of range is refused with file, line and key.
  `hisearch doctor my-study.yaml` checks a document and all it names without running anything.
- **Overrides.** `--set spec.budget.simulations=500` sets a key before the document is checked; list entries go by
  number (`--set spec.pools.0.replicas=2`).
- **Editors.** `hisearch schema Study` prints a kind's JSON Schema.

YAML is read by version 1.2's rules (`on` and `no` are text); one document a file, no custom tags, no duplicate keys.
"""

EXAMPLES = {
    "Study": """\
spec:
  model: qwen3-32b
  workload: {trace: chat-multiturn, load: 1.0}
  slo: interactive-chat
  space: quickstart
  objectives: [ttft_p99, goodput, usd_per_hour]
  budget: {simulations: 400, seconds: 600}
""",
    "FleetStudy": """\
spec:
  models:
    qwen3-32b: {workload: {trace: chat-multiturn}, slo: interactive-chat}
    llama-3.1-8b: {workload: {trace: azure-conv-like}, slo: batch}
  space: quickstart
  objectives: [ttft_p99, goodput, usd_per_hour]
  budget: {simulations: 400, seconds: 600}
""",
    "SLO": """\
spec:
  terms:
    - {metric: ttft_s, percentile: 99, at_most_s: 2.0}
    - {metric: tpot_s, percentile: 99, at_most_s: 0.05}
""",
    "SearchSpace": """\
spec:
  execution:
    accelerators: [h100-sxm, l40s]
    engines: [sglang, vllm]
    tensor_parallel: [1, 2, 4]
  routing:
    policies: [round_robin, cache_aware]
  cache:
    tiers:
      - {media: [ddr5], gib: {low: 64, high: 1024}}
      - {media: [nvme-gen5], gib: [0, 3500], ttl_s: [null, 86400]}
    movement: {prefetch: [best_effort, timeout]}
""",
    "Workload": """\
spec:
  generator:
    requests: 5000
    arrivals: {process: poisson, rate_rps: 4.0}
    first_input: {distribution: lognormal, mean_log: 6.5, sigma_log: 1.0, max_tokens: 16000}
    output: {distribution: constant, scale_tokens: 300}
    sessions:
      continue_probability: [0.5]
      think: {p50_s: 20, p90_s: 120}
""",
    "Model": """\
spec:
  huggingface_id: meta-llama/Llama-3.1-8B-Instruct
  layers: 32
  hidden_size: 4096
  attention_heads: 32
  kv_heads: 8
  head_dim: 128
  intermediate_size: 14336
  vocab_size: 128256
  max_context_tokens: 131072
  provenance: {source: the model's config.json, as_of: 2026-11-01}
""",
    "Accelerator": """\
spec:
  memory_bytes: 48305799168
  memory_bandwidth_bytes_per_s: 864e9
  peak_flops: {bf16: 362e12, fp8: 733e12}
  peer_link: {kind: pcie, bandwidth_bytes_per_s: 28e9, latency_s: 5.0e-6}
  host_link: {kind: pcie, bandwidth_bytes_per_s: 26e9, latency_s: 10.0e-6}
  idle_w: 35
  active_w: 350
  price: {usd_per_hour: 0.62, source: our contract, as_of: 2026-11-01}
  provenance: {source: data sheet, as_of: 2026-11-01}
""",
    "Medium": """\
spec:
  kind: dram
  read_bytes_per_s: 400e9
  write_bytes_per_s: 400e9
  latency_s: 0.15e-6
  capacity_bytes: 2199023255552
  usd_per_gib_hour: 0.002
  scope: node
  provenance: {source: data sheet, as_of: 2026-11-01}
""",
    "Device": """\
spec:
  kind: cxl
  memory_bytes: 549755813888
  memory_bandwidth_bytes_per_s: 26.0e9
  link: {kind: cxl, bandwidth_bytes_per_s: 26.0e9, latency_s: 0.35e-6}
  idle_w: 20
  price: {usd_per_hour: 0.77, source: our contract, as_of: 2026-11-01}
  provenance: {source: data sheet, as_of: 2026-11-01}
""",
    "Host": """\
spec:
  accelerators: 4
  dram: ddr5
  dram_bytes: 1099511627776
  price: {usd_per_hour: 1.5, source: our contract, as_of: 2026-11-01}
  provenance: {source: data sheet, as_of: 2026-11-01}
""",
    "Fabric": """\
spec:
  link: {kind: roce, bandwidth_bytes_per_s: 25e9, latency_s: 5.0e-6}
  provenance: {source: data sheet, as_of: 2026-11-01}
""",
    "LatencyProfile": """\
spec:
  evidence: assumed
  gemm: {flops: 0.7, bandwidth: 0.8, launch_s: 2.0e-6}
  prefill_attention: {flops: 0.5, bandwidth: 0.7, launch_s: 10.0e-6}
  decode_attention: {flops: 0.4, bandwidth: 0.75, launch_s: 10.0e-6}
  elementwise: {flops: 0.5, bandwidth: 0.7, launch_s: 2.0e-6}
  all_reduce: {alpha_s: 12.0e-6, bandwidth: 0.7}
  engines:
    vllm: {step_s: 1.0e-3, per_sequence_s: 4.0e-6}
    sglang: {step_s: 0.8e-3, per_sequence_s: 3.0e-6}
    trtllm: {step_s: 0.8e-3, per_sequence_s: 3.0e-6}
  relative_error: 0.3
  provenance: {source: a guess, as_of: 2026-11-01}
""",
    "Deployment": """\
spec:
  model: qwen3-32b
  pools:
    - accelerator: h100-sxm
      tensor_parallel: 2
      replicas: 4
      engine: {name: sglang, chunk_tokens: 8192}
      tiers:
        - {medium: ddr5, gib: 256}
  router: {policy: cache_aware}
""",
}

#: Kind -> columns that the catalogue shows beside name and description.
FACTS: dict[str, dict[str, Callable[[Any], str]]] = {
    "SLO": {"terms": lambda spec: ", ".join(f"{term.label} ≤ {term.at_most_s:g} s" for term in spec.terms)},
    "Model": {"weights": lambda spec: spec.weight_dtype, "context": lambda spec: f"{spec.max_context_tokens:,} tokens"},
    "Accelerator": {
        "memory": lambda spec: f"{spec.memory_bytes / 2**30:.1f} GiB",
        "bandwidth": lambda spec: f"{spec.memory_bandwidth_bytes_per_s / 1e12:.2f} TB/s",
        "bf16 peak": lambda spec: f"{spec.peak_flops['bf16'] / 1e12:,.0f} TFLOP/s",
        "USD/hour": lambda spec: f"{spec.price.usd_per_hour:g} ({spec.price.evidence})",
    },
    "Medium": {
        "read": lambda spec: f"{spec.read_bytes_per_s / 1e9:g} GB/s",
        "USD per GiB and hour": lambda spec: f"{spec.usd_per_gib_hour:g}",
    },
    "LatencyProfile": {
        "evidence": lambda spec: spec.evidence,
        "stated error of a step": lambda spec: f"{spec.relative_error:.0%}",
    },
}


def reference() -> str:
    """The whole page."""
    schemas = {kind: json_schema(kind)["$defs"] for kind in KINDS}
    shared: dict[str, Schema] = {}
    parts = [INTRODUCTION, _contents()]
    for kind in KINDS:
        sections = {_title(name): section for name, section in schemas[kind].items()}
        shared |= {name: section for name, section in sections.items() if name in SHARED}
        parts += _kind(kind, sections)
    parts.append("## Shared sections\n")
    parts += [_section(name, shared[name], "") for name in SHARED]
    parts.append(_catalogue())
    return "\n".join(parts)


def _contents() -> str:
    kinds = [f"[{kind}](#{kind.lower()})" for kind in KINDS]
    return (
        f"Kinds: {' · '.join(kinds)}. Then [shared sections](#shared-sections) and [the catalogue](#the-catalogue).\n"
    )


def _kind(kind: str, sections: dict[str, Schema]) -> Iterator[str]:
    """The kind's spec, an example, and the sections inside it in the order of first mention."""
    yield f"## {kind}\n"
    yield f"{_text(sections[kind]['description'])} Folder: `{FOLDERS[kind]}/`.\n"
    name = f"my-{kind.lower()}"
    head = f"apiVersion: {API_VERSION}\nkind: {kind}\nmetadata: {{name: {name}}}\n"
    yield f"```yaml\n{head}{EXAMPLES[kind]}```\n"
    yield _table(sections[kind])
    described = {*SHARED, *KINDS}
    for section, places in _inside(sections, kind).items():
        if section not in described:
            where = "In " + ", ".join(f"`spec.{place}`" for place in places) + ". "
            yield _section(section, sections[section], where)


def _inside(sections: dict[str, Schema], kind: str) -> dict[str, list[str]]:
    """Sections below a kind's spec -> key paths where they stand; those of other kinds are not looked into."""
    uses: dict[str, list[str]] = {}
    open_ends = [(kind, "")]
    while open_ends:
        section, place = open_ends.pop(0)
        for key, field in sections[section].get("properties", {}).items():
            for inner, suffix in _references(field):
                path = f"{place}{key}{suffix}"
                uses.setdefault(inner, []).append(path)
                if inner not in KINDS:
                    open_ends.append((inner, f"{path}."))
    return uses


def _references(field: Schema, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Sections that a field's value may be, with what follows the key on the way there: an index or a name."""
    if "$ref" in field:
        yield _title(field["$ref"].rpartition("/")[2]), suffix
    for option in field.get("anyOf", ()):
        yield from _references(option, suffix)
    if "items" in field:
        yield from _references(field["items"], f"{suffix}[]")
    if isinstance(field.get("additionalProperties"), dict):
        yield from _references(field["additionalProperties"], f"{suffix}.NAME")


def _section(name: str, section: Schema, where: str) -> str:
    return f"### {name}\n\n{where}{_text(section['description'])}\n\n{_table(section)}"


def _table(section: Schema) -> str:
    required = set(section.get("required", ()))
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key, field in section["properties"].items():
        unit = next((f", {unit}" for end, unit in UNITS if key.endswith(end) and _numeric(field)), "")
        default = "**required**" if key in required else _default(field)
        rows.append(f"| `{key}` | {_type(field)}{unit} | {default} | {_text(field['description'])} |")
    return "\n".join(rows) + "\n"


def _type(field: Schema) -> str:
    """A JSON schema type in words."""
    if "$ref" in field:
        name = _title(field["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"] if option.get("type") != "null")
    if "enum" in field or "const" in field:
        return " \\| ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field["type"]
    if kind == "array":
        if "prefixItems" in field:
            return "pair of " + _plural(_type(field["prefixItems"][0]))
        return "list of " + _plural(_type(field["items"]))
    if kind == "object":
        keys = _type(field["propertyNames"]) if "propertyNames" in field else "name"
        return f"{keys}: {_type(field['additionalProperties'])}"
    if field.get("format") == "date":
        return "date"
    words = {"string": "text", "number": "number", "integer": "integer", "boolean": "`true` \\| `false`"}
    return words[kind] + _bounds(field)


def _plural(words: str) -> str:
    return re.sub(r"^(number|integer|pair)\b", r"\1s", words)


def _bounds(field: Schema) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field]
    return " " + ", ".join(bounds) if bounds else ""


def _numeric(field: Schema) -> bool:
    """True where the value is a number, or numbers in a list or by name."""
    inner = [*field.get("anyOf", ()), *field.get("prefixItems", ())]
    inner += [field[key] for key in ("items", "additionalProperties") if isinstance(field.get(key), dict)]
    return field.get("type") in {"number", "integer"} or any(_numeric(part) for part in inner)


def _default(field: Schema) -> str:
    if "default" not in field:
        return "empty"
    value = field["default"]
    if value is None or value == "":
        return "none"
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return "`[" + ", ".join(_plain(item) for item in value) + "]`"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _title(model: str) -> str:
    """A spec model's name as the page calls it: its kind's, or ``PoolSpec`` -> ``Pool``."""
    return _KIND_OF.get(model, model.removesuffix("Spec"))


def _text(docstring: str) -> str:
    """A docstring in one line of Markdown."""
    line = " ".join(docstring.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r"\bdocs/([a-z]+\.md)", r"[\1](\1)", line)


def _catalogue() -> str:
    """What ships, by kind."""
    catalogue = Catalogue(shipped_root())
    parts = [
        "## The catalogue\n",
        "What ships with hisearch. Prices are assumptions with a date: copy a file into a folder of the same name in "
        "your working directory and edit it there; yours is found first.\n",
    ]
    for kind in KINDS:
        facts = FACTS.get(kind, {})
        rows = ["| name | description |" + "".join(f" {name} |" for name in facts), "| --- " * (2 + len(facts)) + "|"]
        for name in catalogue.names(kind):
            document = catalogue.get(kind, name)
            cells = "".join(f" {fact(document.spec)} |" for fact in facts.values())
            rows.append(f"| `{name}` | {_first_sentence(document.description)} |{cells}")
        parts.append(f"### Shipped: {kind}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _first_sentence(text: str) -> str:
    first = _text(re.split(r"(?<=[a-z0-9)])[.:] ", text, maxsplit=1)[0].rstrip("."))
    return first if first.endswith("?") else f"{first}."


def main() -> None:
    """Print the page, or write it."""
    if sys.argv[1:] == ["--write"]:
        TARGET.write_text(reference(), encoding="utf-8")
    elif not sys.argv[1:]:
        sys.stdout.buffer.write(reference().encode())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
