"""Sessions: what users send, as chains of parts; the next turn comes after the answer.

Two prompts share tokens exactly where they share their first parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

VOCAB_SIZE = 32_000
GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that is always used as a whole: a system prompt, a question, an answer. Equal ids: equal tokens."""

    id: int
    length: int

    def tokens(self) -> np.ndarray:
        """Its token ids, int64 [length], in 0..VOCAB_SIZE - 1: the same in every process."""
        state = np.arange(1, self.length + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(mixed(self.id))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((state ^ (state >> np.uint64(31))) % np.uint64(VOCAB_SIZE)).astype(np.int64)


def mixed(x: int) -> int:
    """64 bits, each of which depends on all bits of `x` (SplitMix64's finaliser)."""
    x = (x + GOLDEN) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def chain(segments: Iterable[Segment]) -> list[int]:
    """A number for each of them that stands for it and all before it: equal numbers, equal tokens up to its end."""
    found, above = [], 0
    for segment in segments:
        above = mixed(above ^ segment.id)
        found.append(above)
    return found


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: a prompt, the answer that the model will give, and when it is sent: `think_s` seconds after the last of
    the turns `after` (earlier ones, by number) has been answered, or after the session's start if there are none."""

    prompt: tuple[Segment, ...]
    answer: Segment
    think_s: float = 0.0
    after: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.length for segment in self.prompt)


@dataclass(frozen=True, slots=True)
class Session:
    """The turns of one user's task, which begins at `start` seconds."""

    start: float
    turns: tuple[Turn, ...]

    def from_now(self) -> "Session":
        """What is left of it at time 0, if it began before: its turns from then on, as if answers had taken no time."""
        if self.start >= 0:
            return self
        times, kept, turns = list[float](), dict[int, int](), list[Turn]()
        for number, turn in enumerate(self.turns):
            times.append(max((times[earlier] for earlier in turn.after), default=self.start) + turn.think_s)
            if times[-1] >= 0:
                after = tuple(kept[earlier] for earlier in turn.after if earlier in kept)
                kept[number] = len(turns)
                turns.append(Turn(turn.prompt, turn.answer, turn.think_s if after else times[-1], after))
        return Session(0.0, tuple(turns))


@dataclass(slots=True)
class SessionRun:
    """How far a session is. `answered` says which turns can be sent then."""

    session: Session
    left: list[int] = field(init=False)  # for each turn, how many others it still waits for

    def __post_init__(self) -> None:
        self.left = [len(turn.after) for turn in self.session.turns]

    def first(self) -> Iterator[int]:
        """The turns that wait for no other."""
        return (number for number, turn in enumerate(self.session.turns) if not turn.after)

    def answered(self, number: int) -> Iterator[int]:
        """Note that a turn has its answer; the turns that waited only for this."""
        for later in range(number + 1, len(self.session.turns)):
            if number in self.session.turns[later].after:
                self.left[later] -= 1
                if not self.left[later]:
                    yield later


@dataclass(eq=False)
class SimRequest:
    """Turn `number` of a session on its way through the cluster. Times are seconds of the simulation's clock.
    `cached_tokens`: how much of the prompt its replica had. `ideal_tokens`: how much of it one infinitely large cache would
    have had (see EverythingSent)."""

    id: int
    run: SessionRun
    number: int
    sent: float
    ideal_tokens: int
    replica: int = -1
    first_token: float = 0.0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def turn(self) -> Turn:
        return self.run.session.turns[self.number]

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return self.first_token - self.sent

    def prompt_ids(self) -> np.ndarray:
        """The prompt's token ids, int64."""
        return np.concatenate([segment.tokens() for segment in self.turn.prompt])
