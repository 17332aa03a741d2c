"""`python -m notebooks.course.explore [NAME ...] [--out FOLDER]`: write interactive figures as pages."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from nanoinfer.llm import LLM
from notebooks.course import explore
from notebooks.course.explore import InteractiveFigure

FILES = {
    each.name: import_module(f"{explore.__name__}.{each.name}")
    for each in iter_modules(explore.__path__)
    if each.name != "__main__"
}
# A figure is a function in a file of the same name.
CATALOGUE: dict[str, Callable[[LLM], InteractiveFigure]] = {
    name: vars(file)[name]
    for name, file in FILES.items()
    if getattr(vars(file).get(name), "__module__", "") == file.__name__
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
