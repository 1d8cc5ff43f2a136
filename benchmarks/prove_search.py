"""The search held against the exhaustive front of an enumerated space, and against flat samplers.

    python benchmarks/prove_search.py [--study FILE] [--folder DIR] [--seeds 5] [--simulations 1200] [--write]

Without ``--study``: of all shipped ones, the space that the search was tuned on and those that it was not. A space
is simulated in full once (minutes on two cores) and kept in the folder, like every curve: a run that was stopped goes
on where it was. ``--write`` renews the figures and the tables of docs/search.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.proof.curves import prove  # noqa: E402
from benchmarks.proof.pages import as_text, write_docs  # noqa: E402

#: The space that shares, batches and reach of the search were chosen on, and those that no number was chosen on; of
#: these ``documents`` and ``support`` have each shown a fault, which was mended.
STUDIES = tuple(ROOT / f"benchmarks/proof/{name}.yaml" for name in ("coder", "documents", "support", "research"))


def main() -> None:
    """Prove and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, action="append", help="may be repeated")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/prove-search", help="where everything is kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulations", type=int, default=1200, help="of a flat search")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write docs/search.md's tables and figure")
    options = parser.parse_args()
    for study in options.study or STUDIES:
        proof = prove(
            study,
            options.folder / study.stem,
            seeds=options.seeds,
            flat_simulations=options.simulations,
            workers=options.workers,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(as_text(proof))
        if options.write:
            write_docs(proof, ROOT / "docs")


if __name__ == "__main__":
    main()
