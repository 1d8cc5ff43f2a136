"""Compare the search with the exhaustive front of an enumerated space, and with flat samplers.

    python benchmarks/prove_search.py [--study FILE] [--folder DIR] [--seeds 5] [--simulations 1200] [--write]

Without ``--study``: all shipped spaces, the one that the search was tuned on and the others. A space is simulated in
full once (minutes on two cores) and kept in the folder, like every curve; a stopped run resumes where it was.
``--write`` updates the figures and the tables of docs/notes/2026-11-search-proof.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.proof.curves import prove  # noqa: E402
from benchmarks.proof.pages import as_text, write_docs  # noqa: E402

#: The space on which the search's shares, batches and reach were tuned (``coder``), and those on which nothing was
#: tuned. Of these, ``documents`` and ``support`` each exposed a fault, since fixed.
STUDIES = tuple(ROOT / f"benchmarks/proof/{name}.yaml" for name in ("coder", "documents", "support", "research"))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, action="append", help="may be repeated")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/prove-search", help="where everything is kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulations", type=int, default=1200, help="of a flat search")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the note's tables and figure")
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
