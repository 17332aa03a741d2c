"""The processes of a split model, as tests look at them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.parallel.ranks import Ranks, StartedRanks
from tests.helpers.waiting import until

PROMPT = "Once upon a time"
PARAMS = SamplingParams(max_new_tokens=12, temperature=0)


def ranks_of(llm: LLM) -> Ranks:
    return llm.engine.model_runner._ranks  # type: ignore[attr-defined, no-any-return]


def pids_of(llm: LLM) -> list[int]:
    workers = ranks_of(llm).workers
    assert isinstance(workers, StartedRanks)
    return workers.pids


def ranks_below(parent: int) -> list[int]:
    """The processes that `parent` has started as ranks of a model, by rank."""
    found = {}
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in map(int, children.read_text().split()):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "nanoinfer.model.parallel.worker" in command:
                    found[int(command[command.index("nanoinfer.model.parallel.worker") + 1])] = pid
    return [found[rank] for rank in sorted(found)]


def lives(pid: int) -> bool:
    """Whether a process computes or waits: what has ended, and nobody has asked for how, does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def until_ended(pids: Iterable[int]) -> None:
    """Wait until none of these processes lives."""
    until(lambda: not any(map(lives, pids)), "the end of the ranks")
