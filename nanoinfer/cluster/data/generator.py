"""Generator: an LLM in an actor of Ray Data, which answers blocks of rows; and the order in which rows go to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from nanoinfer.cluster.ray_runtime import quiet_logs
from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.request import Request
from nanoinfer.sampling_params import SamplingParams

ANSWER_COLUMNS = ("text", "token_ids", "finish_reason", "prompt_tokens", "cached_tokens", "error")
ORDER = "__nanoinfer_order__"  # a column: by it, rows are sorted
ORDER_CHARS, ORDER_TOKENS = 2048, 512  # of a prompt that count for the order


@dataclass(frozen=True)
class Work:
    """What is to be done with each row: `prompt_column` is completed by `model` as `params` say. `seed`: of the run; each
    row has its own, made from this and the row's key, so that it gets the same tokens in any order and every time."""

    model: str
    options: Mapping[str, Any]
    params: SamplingParams
    prompt_column: str
    key_column: str
    seed: int
    adapter: str | None = None

    def params_of(self, key: Any) -> SamplingParams:
        """The row's SamplingParams."""
        text = f"{type(key).__name__} {key!r}".encode()
        digest = blake2b(text, digest_size=8, key=self.seed.to_bytes(8, "little")).digest()
        return replace(self.params, seed=int.from_bytes(digest, "little"))


class Generator:
    """Ray Data makes one per replica and calls it with tables of rows."""

    def __init__(self, work: Work):
        from nanoinfer.llm import LLM  # torch, which Ray's workers that only sort rows do not need

        quiet_logs()
        self._work = work
        self._llm = LLM(work.model, **work.options)

    def __call__(self, table: Any) -> Any:
        """Answer the rows of a pyarrow table: returns it with ANSWER_COLUMNS added. A row whose prompt is refused has the
        reason in `error`, and no answer."""
        import pyarrow

        if ORDER in table.column_names:
            table = table.drop_columns([ORDER])
        prompts = table.column(self._work.prompt_column).to_pylist()
        keys = table.column(self._work.key_column).to_pylist()
        columns = self._answers(prompts, keys)
        types = (pyarrow.string(), pyarrow.list_(pyarrow.int64()), pyarrow.string(), pyarrow.int64(), pyarrow.int64())
        for name, kind in zip(ANSWER_COLUMNS, (*types, pyarrow.string()), strict=True):
            table = table.append_column(name, pyarrow.array(columns[name], kind))
        return table

    def _answers(self, prompts: Sequence[Any], keys: Sequence[Any]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [None] * len(keys) for name in ANSWER_COLUMNS}
        good: list[int] = []
        params = [self._work.params_of(key) for key in keys]
        for i, prompt in enumerate(prompts):
            try:
                self._llm.engine.prepare(Request(prompt, params[i], adapter=self._work.adapter, name=repr(keys[i])))
                good.append(i)
            except InvalidRequestError as error:
                columns["error"][i] = str(error)
        outputs = self._llm.generate(
            [prompts[i] for i in good], [params[i] for i in good], use_tqdm=False, adapter=self._work.adapter
        )
        for i, output in zip(good, outputs, strict=True):
            columns["text"][i], columns["token_ids"][i] = output.text, output.token_ids
            columns["finish_reason"][i] = str(output.finish_reason)
            columns["prompt_tokens"][i], columns["cached_tokens"][i] = output.prompt_tokens, output.cached_tokens
        return columns


def with_order(table: Any, prompt_column: str) -> Any:
    """A pyarrow table with the column ORDER: sorted by it, prompts that begin alike are neighbours."""
    import pyarrow

    order = [order_of(prompt) for prompt in table.column(prompt_column).to_pylist()]
    return table.append_column(ORDER, pyarrow.array(order, pyarrow.string()))


def order_of(prompt: Any) -> str:
    """What a prompt is sorted by: its beginning."""
    if isinstance(prompt, str):
        return prompt[:ORDER_CHARS]
    return "".join(f"{int(token):08x}" for token in list(prompt or ())[:ORDER_TOKENS])
