"""generate_dataset: completes every prompt of a dataset, exactly once, whatever dies on the way."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

from nanoinfer.cluster.data.answer_folder import AnswerFolder
from nanoinfer.cluster.data.generator import ANSWER_COLUMNS, ORDER, Generator, Work, with_order
from nanoinfer.cluster.policy import check_above_zero, check_count
from nanoinfer.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def generate_dataset(
    dataset: Any,
    output: str | Path,
    model: str = "story",
    params: SamplingParams | None = None,
    *,
    prompt_column: str = "prompt",
    key_column: str = "key",
    replicas: int = 2,
    cpus_per_replica: float = 1.0,
    rows_per_block: int = 64,
    adapter: str | None = None,
    options: Mapping[str, Any] | None = None,
    stall_timeout_s: float = 600.0,
    most_failures: int = 3,
    use_tqdm: bool = True,
    on_progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Complete `prompt_column` (texts, or lists of token ids) of each row of a Ray dataset. Returns the dataset of the rows
    with their answers in ANSWER_COLUMNS, in no particular order.

    `output`: a folder for the answers. Rows that have theirs there are not computed again: after a crash, or a Ctrl-C, the
    same call goes on where it was. Only this process writes there, so exactly one answer per row is kept, whoever dies.
    `key_column`: a text or an integer per row, each only once. `params`: for all rows, with n=1; a row's tokens depend on
    `params.seed` and its key, but not on its company. `options`: of LLM, for each of the `replicas`.

    Rows are sorted by their prompts and go to replicas in blocks of `rows_per_block`, so that a replica gets prompts that
    begin alike one after another. A row whose prompt is refused gets the reason as `error`.

    When an actor or a node dies, Ray Data does the blocks again that were there. When it fails itself, or brings no block
    for `stall_timeout_s` seconds (a lost node can leave it waiting), its run is killed and another one does what is
    missing: what is lost then is the work on blocks that had not arrived, and that time. RuntimeError after `most_failures`
    such runs in a row without any answer. ValueError naming what is wrong with the arguments, the columns or the keys.

    `on_progress(done, total)` is called after each block.
    """
    params = params or SamplingParams()
    _check(params, replicas, cpus_per_replica, rows_per_block, stall_timeout_s, most_failures)
    keys = _keys(dataset, key_column, prompt_column)
    settings = {
        "model": model,
        "adapter": adapter,
        "params": {name: value for name, value in asdict(params).items() if name not in ("seed", "logits_processors")},
        "columns": [key_column, prompt_column],
        "seed": params.seed,
    }
    from tqdm.auto import tqdm

    with AnswerFolder(output, key_column, settings) as folder:
        seed = int(folder.settings["seed"])
        work = Work(model, dict(options or {}), params, prompt_column, key_column, seed, adapter)
        strangers = folder.done - keys
        if strangers:
            raise ValueError(
                f"output={str(folder.path)!r}: has answers for {len(strangers)} keys that the dataset has not, such as "
                f"{next(iter(strangers))!r}"
            )
        failures = 0
        with tqdm(total=len(keys), initial=len(folder.done), desc="rows", disable=not use_tqdm) as bar:
            while len(folder.done) < len(keys):
                before = len(folder.done)
                blocks = ceil((len(keys) - before) / rows_per_block)
                try:
                    for table in run_round(
                        dataset, folder.done, work, replicas, cpus_per_replica, blocks, stall_timeout_s
                    ):
                        bar.update(folder.add(table))
                        if on_progress is not None:
                            on_progress(len(folder.done), len(keys))
                    reason = "the run ended with rows missing"
                except RoundLostError as error:
                    reason = str(error)
                    logger.warning("a run of Ray Data is lost (%s); another one does what is missing", reason)
                failures = 0 if len(folder.done) > before else failures + 1
                if failures >= most_failures:
                    raise RuntimeError(f"{failures} runs in a row brought no answer; the last one: {reason}")
        import ray.data

        return ray.data.read_parquet(folder.files())


def _check(params: SamplingParams, replicas: int, cpus: float, rows: int, stall_s: float, failures: int) -> None:
    for name, number in (("replicas", replicas), ("rows_per_block", rows), ("most_failures", failures)):
        check_count(name, number, least=1)
    check_above_zero("cpus_per_replica", cpus)
    check_above_zero("stall_timeout_s", stall_s)
    if params.n != 1:
        raise ValueError(f"params: n={params.n}: must be 1, for there is one answer per row")
    if params.logits_processors:
        raise ValueError("params: logits_processors: are functions, which cannot be compared when a run goes on")
    if params.logprobs is not None or params.prompt_logprobs:
        raise ValueError("params: logprobs, prompt_logprobs: are not kept in datasets")


def _keys(dataset: Any, key_column: str, prompt_column: str) -> set[Any]:
    """The keys of all rows. ValueError unless each is there once, and the columns are as they must be."""
    columns = dataset.columns() or []
    for name, column in (("prompt_column", prompt_column), ("key_column", key_column)):
        if column not in columns:
            raise ValueError(
                f"{name}={column!r}: the dataset has no such column; it has {', '.join(map(repr, columns))}"
            )
    if clash := [name for name in columns if name in (*ANSWER_COLUMNS, ORDER)]:
        raise ValueError(f"dataset: has a column {clash[0]!r}, which the answers need")
    keys = [row[key_column] for row in dataset.select_columns([key_column]).iter_rows()]
    wrong = next((key for key in keys if isinstance(key, bool) or not isinstance(key, str | int)), None)
    if wrong is not None or None in keys:
        raise ValueError(f"key_column={key_column!r}: {wrong!r}: must be a text or an integer")
    if len(set(keys)) < len(keys):
        key, count = Counter(keys).most_common(1)[0]
        raise ValueError(f"key_column={key_column!r}: {key!r}: {count} rows have it; each must be there once")
    return set(keys)


class RoundLostError(RuntimeError):
    """A round has brought an error, or nothing for too long."""


class Round:
    """One attempt at what is still to be done of a dataset, in an actor of its own. `answers` can be called once.

    Ray Data may fail, or wait for ever for something that went away with its node. So its driver is not our process but an
    actor that can be killed: with it go the workers that it has started, and nothing of theirs is waited for.
    """

    def answers(
        self, dataset: Any, done: set[Any], work: Work, replicas: int, cpus: float, blocks: int
    ) -> Iterator[Any]:
        """pyarrow tables of answered rows, for the rows of `dataset` whose keys are not in `done`, in so many blocks."""
        import pyarrow
        from ray.data import ActorPoolStrategy, DataContext

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
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
