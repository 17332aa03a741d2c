"""What `bench drafts` measures: its settings, and the engines that it compares."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoinfer.bench.draft_peers import PEER_WORKLOAD
from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS, DraftWorkload
from nanoinfer.bench.engines import EngineSpec

LEAST_REQUESTS = 16  # of a run
SECOND_VISIT = "tree"  # the drafter that knows a text once it was served


@dataclass(frozen=True)
class DraftSettings:
    """What to measure. `requests`: how many at a time. `always`: draft even where it is not expected to pay.

    `draft_model` None: the model's own. `new_tokens`: per request at most; None: as the workloads say. `least_requests`: a
    run has at least so many. `peers`: other engines, for the workload `copying`; `timeout`: how many seconds one may take
    for an answer.
    """

    model: str = "story"
    draft_model: str | None = None
    workloads: Sequence[str] = tuple(DRAFT_WORKLOADS)
    requests: Sequence[int] = (1, 4, 16, 32)
    num_draft_tokens: Sequence[int] = (3, 7)
    rounds: int = 5
    threads: int = 1
    seed: int = 0
    always: bool = False
    new_tokens: int | None = None
    least_requests: int = LEAST_REQUESTS
    peers: Sequence[EngineSpec] = ()
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in DRAFT_WORKLOADS:
                raise ValueError(f"--workloads {name}: must be one of {', '.join(DRAFT_WORKLOADS)}")
        for option, numbers, most in (
            ("--requests", self.requests, 256),
            ("--num-draft-tokens", self.num_draft_tokens, 16),
            ("--rounds", [self.rounds], 1000),
            ("--threads", [self.threads], 1024),
        ):
            for number in numbers:
                if not 1 <= number <= most:
                    raise ValueError(f"{option} {number}: must be in 1..{most}")
        if self.peers and PEER_WORKLOAD not in self.workloads:
            raise ValueError(f"--compare {self.peers[0].name}: needs the workload {PEER_WORKLOAD}")


@dataclass(frozen=True)
class Variant:
    """An engine: who drafts, and how many tokens. Nobody: `again` tells the engine for the noise from the other."""

    drafters: tuple[str, ...] = ()
    num_draft_tokens: int = 0
    again: bool = False

    @property
    def second_visit(self) -> bool:
        """Whether its requests, and those of the run without drafts beside it, are served once before they are timed."""
        return self.drafters == (SECOND_VISIT,)

    def __str__(self) -> str:
        if not self.drafters:
            return "once more" if self.again else "without"
        return f"{'+'.join(self.drafters)}{', second visit' if self.second_visit else ''}, {self.num_draft_tokens}"


WITHOUT, ONCE_MORE = Variant(), Variant(again=True)


def variants(workload: DraftWorkload, num_draft_tokens: Sequence[int]) -> list[Variant]:
    """The rows of a workload's table, the noise last."""
    return [*(Variant(names, count) for names in workload.drafters for count in num_draft_tokens), ONCE_MORE]
