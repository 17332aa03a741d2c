"""`python -m notebooks.course.explore [NAME ...] [--out FOLDER]`: write explorables as pages."""

import argparse
import sys
from pathlib import Path

from nanoinfer.frontends.llm import LLM

try:
    from notebooks.course.explore.catalogue import CATALOGUE
except ImportError as error:  # of matplotlib, which says what to install
    sys.exit(str(error))


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
            parser.error(f"{name}: there is no such explorable; must be one of {', '.join(CATALOGUE)}")
    if not args.out.is_dir():
        parser.error(f"--out {args.out}: there is no such folder")
    llm = LLM(args.model)
    for name in args.name or CATALOGUE:
        path = args.out / f"{name}.html"
        CATALOGUE[name](llm).save(path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
