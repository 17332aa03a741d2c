"""Sessions: what a user sends, and what each request waits for. A closed loop: the next turn comes after the answer."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nanoinfer.cluster.simulate.segments import Segment, total_length


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: a prompt, the answer that the model will give, and when it is sent: `think_s` seconds after the last of
    the turns `after` has been answered, or after the session's start if there are none."""

    prompt: tuple[Segment, ...]
    answer: Segment
    think_s: float = 0.0
    after: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return total_length(self.prompt)


@dataclass(frozen=True, slots=True)
class Session:
    """The turns of one user's task, which begins at `start` seconds. ValueError if a turn waits for itself or a later
    one."""

    user: int
    start: float
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        for number, turn in enumerate(self.turns):
            if any(not 0 <= earlier < number for earlier in turn.after):
                raise ValueError(f"turn {number}: after={turn.after}, must be numbers of earlier turns")


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


def under_way(session: Session) -> Session:
    """What is left at time 0 of a session that began before: its turns from then on, as if answers had taken no time.

    A session that begins later is returned as it is.
    """
    if session.start >= 0:
        return session
    times, kept = list[float](), dict[int, int]()
    turns = list[Turn]()
    for number, turn in enumerate(session.turns):
        begins = max((times[earlier] for earlier in turn.after), default=session.start)
        times.append(begins + turn.think_s)
        if times[-1] < 0:
            continue
        after = tuple(kept[earlier] for earlier in turn.after if earlier in kept)
        kept[number] = len(turns)
        turns.append(Turn(turn.prompt, turn.answer, turn.think_s if after else times[-1], after))
    return Session(session.user, 0.0, tuple(turns))
