"""`python -m notebooks.course.explore [NAME ...] [--out FOLDER]`: write interactive figures as pages."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from nanoinfer.llm import LLM
from notebooks.course.explore import InteractiveFigure
from notebooks.course.explore.batching import batching
from notebooks.course.explore.block_slots import block_slots
from notebooks.course.explore.captured_sizes import captured_sizes
from notebooks.course.explore.double_free import double_free
from notebooks.course.explore.eviction import eviction
from notebooks.course.explore.fetch_or_compute import fetch_or_compute
from notebooks.course.explore.load import load
from notebooks.course.explore.page_sizes import page_sizes
from notebooks.course.explore.pass_fields import pass_fields
from notebooks.course.explore.pool_sizes import pool_sizes
from notebooks.course.explore.query_moves import query_moves
from notebooks.course.explore.query_reads import query_reads
from notebooks.course.explore.routing import routing
from notebooks.course.explore.sampling import sampling
from notebooks.course.explore.token_life import token_life
from notebooks.course.explore.tree_steps import tree_steps
from notebooks.course.explore.utilisation import utilisation
from notebooks.course.explore.verify_steps import verify_steps
from notebooks.course.prompts import FOX

PROMPT = FOX + " One day she found a"

CATALOGUE: dict[str, Callable[[LLM], InteractiveFigure]] = {
    "sampling": lambda llm: sampling(llm, PROMPT),
    "double_free": double_free,
    "query_moves": query_moves,
    "batching": batching,
    "page_sizes": page_sizes,
    "pass_fields": pass_fields,
    "query_reads": query_reads,
    "pool_sizes": pool_sizes,
    "captured_sizes": captured_sizes,
    "load": load,
    "eviction": eviction,
    "tree_steps": tree_steps,
    "token_life": token_life,
    "verify_steps": verify_steps,
    "routing": routing,
    "utilisation": utilisation,
    "fetch_or_compute": fetch_or_compute,
    "block_slots": block_slots,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m notebooks.course.explore", description="Write pages with sliders.")
    parser.add_argument("name", nargs="*", help=f"{', '.join(CATALOGUE)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where to (default: here)")
    parser.add_argument(
        "--model", default="story", help="bundled name, checkpoint directory or Hub name (default: story)"
    )
    args = parser.parse_args(arguments)
    for name in args.name:
        if name not in CATALOGUE:
            parser.error(f"{name}: there is no such figure; must be one of {', '.join(CATALOGUE)}")
    if not args.out.is_dir():
        parser.error(f"--out {args.out}: there is no such folder")
    llm = LLM(args.model)
    for name in args.name or CATALOGUE:
        path = args.out / f"{name}.html"
        CATALOGUE[name](llm).save(path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
