"""Round: one attempt at what is still to be done of a dataset, in an actor of its own.

Ray Data may fail, or wait for ever for something that went away with its node. So its driver is not our process but an
actor that can be killed: with it go the workers that it has started, and nothing of theirs is waited for.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nanoinfer.cluster.data.generator import ORDER, Generator, Work, with_order


class RoundLostError(RuntimeError):
    """A round has brought an error, or nothing for too long."""


class Round:
    """The actor. `answers` can be called once."""

    def answers(
        self, dataset: Any, done: set[Any], work: Work, replicas: int, cpus: float, blocks: int
    ) -> Iterator[Any]:
        """pyarrow tables of answered rows, for the rows of `dataset` whose keys are not in `done`, in so many blocks."""
        context = DataContext.get_current()
        context.enable_progress_bars = False
        key, prompt = work.key_column, work.prompt_column

        def to_do(table: Any) -> Any:
            mask = [each not in done for each in table.column(key).to_pylist()]
            return with_order(table.filter(pyarrow.array(mask, pyarrow.bool_())), prompt)

        # Sorted, so that prompts with the same beginning go to the same replica; and sorted completely before replicas
        # start, since both need processors.
        todo = dataset.repartition(blocks).map_batches(to_do, batch_format="pyarrow", batch_size=None)
        todo = todo.sort(ORDER).materialize()
        answered = todo.map_batches(
            Generator,
            fn_constructor_args=(work,),
            compute=ActorPoolStrategy(size=min(replicas, blocks)),
            num_cpus=cpus,
            batch_format="pyarrow",
            batch_size=None,
        )
        yield from answered.iter_batches(batch_format="pyarrow", batch_size=None, prefetch_batches=0)


def run_round(
    dataset: Any, done: set[Any], work: Work, replicas: int, cpus: float, blocks: int, stall_timeout_s: float
) -> Iterator[Any]:
    """As `Round.answers`, in an actor on this node that ends with the iteration. RoundLostError when it fails, or brings
    nothing for `stall_timeout_s` seconds."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=0)(Round).options(scheduling_strategy=here).remote()
    try:
        stream = actor.answers.options(num_returns="streaming").remote(dataset, done, work, replicas, cpus, blocks)
        while True:
            ready, _ = ray.wait([stream], timeout=stall_timeout_s)
            if not ready:
                raise RoundLostError(f"no answer for stall_timeout_s={stall_timeout_s:g} seconds")
            try:
                table = ray.get(next(stream), timeout=stall_timeout_s)
            except StopIteration:
                return
            except Exception as error:
                raise RoundLostError(f"{type(error).__name__}: {_first_line(error)}") from error
            yield table
    finally:
        ray.kill(actor)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
