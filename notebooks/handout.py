"""The series as students get it: `python -m notebooks.handout FOLDER` copies package and notebooks, without solutions.

FOLDER can be zipped and installed like the project itself: the commands are printed.
"""

import argparse
import shutil
import sys
from pathlib import Path

from notebooks.tools.files import ROOT

CONTENTS = ("LICENSE", "README.md", "data", "nanoinfer", "notebooks", "pyproject.toml", "requirements.txt")
LEFT_OUT = ("solutions", "__pycache__", ".ipynb_checkpoints")
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt -e '.[notebooks]'"


def hand_out(folder: Path, root: Path = ROOT) -> None:
    """Copy what a student needs from the checkout at `root` into `folder`, which must be new or empty (FileExistsError)."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    for name in CONTENTS:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        else:
            shutil.copy(root / name, folder / name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.handout", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where the copy goes; new, or empty")
    folder: Path = parser.parse_args(arguments).folder
    try:
        hand_out(folder)
    except OSError as error:
        parser.error(str(error))
    print(f"cd {folder}\n{INSTALL}\n.venv/bin/jupyter lab notebooks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
