"""Deaths at a certain point, whatever the machine's speed: the first process that gets there is the one that dies."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from nanoinfer.cluster.data.generator import Work
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.sampling_params import SamplingParams
from tests.helpers.waiting import HANG_S, until


def is_first(mark: Path) -> bool:
    """Whether no process of this machine has come here before. From then on, the file says on which node that was."""
    if mark.exists():
        return False
    own = mark.with_suffix(f".{os.getpid()}")
    own.write_text(str(ray.get_runtime_context().get_node_id()))
    try:
        os.link(own, mark)  # with its content, and once
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True


def die() -> None:
    """This process ends at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """This thread does nothing any more, and its process lives on."""
    time.sleep(HANG_S)


def wait_for(path: Path) -> None:
    """This thread waits for the file."""
    until(path.exists, f"the file {path}")


def at_token(number: int, mark: Path, deed: Callable[[], object]) -> Callable[[Engine], None]:
    """To be sent to every replica: where a request first has so many output tokens, `deed` happens between two steps."""

    def arrange(engine: Engine) -> None:
        def look(engine: Engine) -> None:
            if any(req.num_output_tokens >= number for req in engine.scheduler.running) and is_first(mark):
                deed()

        loop_of(engine).after_step.append(look)

    return arrange


@dataclass(frozen=True)
class WorkWithADeath(Work):
    """The worker that first comes to the row of `fatal_key` does a `deed`, with the rest of its block unanswered."""

    fatal_key: Any = None
    mark: Path = Path()
    deed: Callable[[], object] = die

    def params_of(self, key: Any) -> SamplingParams:
        """As in Work."""
        if key == self.fatal_key and is_first(self.mark):
            self.deed()
        return super().params_of(key)
