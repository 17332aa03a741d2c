"""Write the synthetic corpus: `train.jsonl` and `valid.jsonl`, one document per line.

A line is `{"text": ...}` (a story, counting or arithmetic) or `{"messages": [...]}` (a conversation in the chat
format). The grammars are in `corpus/`; the same seed writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from corpus import chats, numbers, stories
from tqdm import tqdm

SHARES = {"story": 0.36, "chat": 0.36, "numbers": 0.28}


def write_document(rng: random.Random) -> tuple[str, dict[str, object]]:
    """One document and its kind, a key of `SHARES`."""
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    if kind == "story":
        return kind, {"text": stories.tell(rng).text}
    if kind == "chat":
        return kind, {"messages": chats.write(rng)}
    return kind, {"text": numbers.write(rng)}


def write_split(path: Path, count: int, seed: str, exclude: set[str]) -> set[str]:
    """Write `count` documents, leaving out those in `exclude`; returns the distinct lines written."""
    rng, sizes, kinds, lines = random.Random(seed), Counter(), Counter(), set()
    with path.open("w", encoding="utf-8") as file, tqdm(total=count, desc=path.name, unit="doc") as bar:
        while bar.n < count:
            kind, document = write_document(rng)
            line = json.dumps(document)
            if line in exclude:
                continue
            file.write(line + "\n")
            lines.add(line)
            kinds[kind] += 1
            sizes[kind] += len(line)
            bar.update()
    parts = ", ".join(
        f"{kinds[kind]:,} {kind} ({sizes[kind] / sum(sizes.values()):.0%} of the bytes)" for kind in SHARES
    )
    print(f"{path}: {parts}; {sum(sizes.values()) / 1e6:.1f} MB, {len(lines) / count:.1%} of the documents distinct")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "build", help="folder for the two files")
    parser.add_argument("--train", type=int, default=140_000, help="training documents")
    parser.add_argument("--valid", type=int, default=1_500, help="validation documents")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    valid = write_split(args.out / "valid.jsonl", args.valid, f"{args.seed}/valid", set())
    write_split(args.out / "train.jsonl", args.train, f"{args.seed}/train", valid)


if __name__ == "__main__":
    main()
