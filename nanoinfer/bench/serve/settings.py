"""ServeSettings: what `bench serve` measures. Cell: one load. And the results file, begun or continued."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.serve.conversations import Lengths
from nanoinfer.bench.serve.figures import Goodput
from nanoinfer.bench.serve.servers import NULL_SERVER, ServerSpec
from nanoinfer.bench.settings import Settings, new_results

FORMAT = "serve"
OURS = ServerSpec("nanoinfer", "nanoinfer")
Results = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A load. `closed`: `level` clients. `open`: requests arrive at `level` times the rate that nanoinfer can serve."""

    kind: str
    level: float

    def __str__(self) -> str:
        return f"{self.kind} {self.level:g}"


@dataclass(frozen=True)
class ServeSettings:
    """What to measure. The first of the `servers` is nanoinfer, which the others are compared with. `clients`: of closed
    loops. `shares`: rates of open loops, as shares of the most requests per second that the first server served in a closed
    loop of the same run.

    `seconds`: for which requests are begun in each cell. `timeout`: how many seconds a server may take to start.
    """

    model: str = "story"
    servers: Sequence[ServerSpec] = (OURS, NULL_SERVER)
    clients: Sequence[int] = (1, 8, 32, 128)
    shares: Sequence[float] = (0.5, 0.8, 0.95, 1.2)
    seconds: float = 5.0
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    goodput: Goodput = field(default_factory=Goodput)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for option, numbers, least, most in (
            ("--concurrency", self.clients, 1, 4096),
            ("--rates", self.shares, 0.01, 100),
            ("--seconds", [self.seconds], 0.1, 3600),
            ("--rounds", [self.rounds], 1, 1000),
            ("--threads", [self.threads], 1, 1024),
            ("--new-tokens", [self.lengths.new_tokens], 2, 100_000),
        ):
            for number in numbers:
                if not least <= number <= most:
                    raise ValueError(f"{option} {number:g}: must be in {least:g}..{most:g}")
        if not self.clients:
            raise ValueError("--concurrency: must name at least one number of clients")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"--timeout {self.timeout:g}: must be above 0 and finite")
        names = [server.name for server in self.servers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"--compare {name}: given twice (nanoinfer itself is always measured)")

    @property
    def cells(self) -> list[Cell]:
        """All loads of a round, closed loops first: they say which rates the open ones have."""
        closed = [Cell("closed", count) for count in sorted(set(self.clients))]
        return closed + [Cell("open", share) for share in sorted(set(self.shares))]

    def as_dict(self) -> dict[str, Any]:
        """What must be the same when a stopped run continues (except `rounds`)."""
        return {
            "servers": [server.name for server in self.servers],
            "clients": sorted(set(self.clients)),
            "shares": sorted(set(self.shares)),
            "seconds": self.seconds,
            "rounds": self.rounds,
            "threads": self.threads,
            "seed": self.seed,
            "lengths": asdict(self.lengths),
            "goodput": str(self.goodput),
        }


def start_results(settings: ServeSettings, checkpoint: Checkpoint) -> Results:
    """A results file without measurements."""
    if checkpoint.context_len < (longest := settings.lengths.longest):
        raise ValueError(
            f"--model {checkpoint.name}: its context is {checkpoint.context_len}; must be at least {longest}"
        )
    results = new_results(Settings([], [], settings.rounds, threads=settings.threads, seed=settings.seed))
    del results["models"]
    return {
        **results,
        "format": FORMAT,
        "model": checkpoint.as_dict(),
        "settings": settings.as_dict(),
        "versions": {server.name: server.version() for server in settings.servers},
        "capacity": None,  # requests per second; the open loops' rates are shares of it
        "failures": {},
        "runs": [],
    }


def continued(file: str, fresh: Results) -> Results:
    """The results in `file`, to be continued with the settings of `fresh`, which is returned if there are none yet.

    ValueError naming what differs. There may be more rounds now than at first.
    """
    if not Path(file).exists() or not Path(file).stat().st_size:
        return fresh
    try:
        before = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--resume {file}: this is not JSON: {error}") from error
    if not isinstance(before, dict) or before.get("format") != fresh["format"]:
        raise ValueError(f"--resume {file}: was not written by this command")
    if missing := [name for name in fresh if name not in before]:
        raise ValueError(f"--resume {file}: is damaged; {missing[0]} is missing")

    def facts(results: Results) -> dict[str, Any]:
        machine = {name: results["machine"][name] for name in ("cpu", "cores")}
        return {**machine, **results["versions"], "model": results["model"], **results["settings"]}

    was, now = facts(before), facts(fresh)
    for name in now:
        if name != "rounds" and was.get(name) != now[name]:
            raise ValueError(f"--resume {file}: {name} is {now[name]!r}, but {was.get(name)!r} in the file")
    if was["rounds"] > now["rounds"]:
        raise ValueError(f"--resume {file}: rounds is {now['rounds']}, but {was['rounds']} in the file")
    return {**before, "rounds": fresh["rounds"], "settings": fresh["settings"]}
