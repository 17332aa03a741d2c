"""nanoinfer, through its ordinary engine: add_request and step."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Peer:
    """`options` are LLM's. Like every measured engine, it takes and returns token ids, and loads no `tokenizer`, unless
    grammars need one."""

    prefix_cache = True

    def __init__(self, model: str, dtype: str, threads: int, tokenizer: bool = False, **options: Any):
        import torch

        import nanoinfer
        from nanoinfer import LLM
        from nanoinfer.model.kernels import selection_of

        torch.set_num_threads(threads)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(model) if tokenizer else without_tokenizer(Path(model), Path(folder))
            self.llm = LLM(path, **{"dtype": dtype, "generation_config": "none", **options})
        self.engine = self.llm.engine
        self.prefix_cache = not self.llm.config.disable_radix_cache
        self.versions = {"nanoinfer": nanoinfer.__version__, "source": source_digest(), "torch": torch.__version__}
        if (device := self.llm.model.device).type != "cpu":
            self.versions["device"] = getattr(torch, device.type).get_device_name(device)
        kernels = getattr(self.llm.model.model, "kernels", self.llm.model.model)
        self.instructions = getattr(kernels, "instructions", f"none of its own (kernels: {selection_of(kernels).name})")
        self._index: dict[int, int] = {}  # request id → index
        self._emitted: dict[int, int] = {}  # index → tokens emitted
        self._cached: dict[int, int] = {}

    def logits(self, tokens: list[int]) -> Any:
        """The logits after each token but the last, [T - 1, V] float32, for `bench quality`.

        They are what the head returns in a pass that computes the log-probabilities of a prompt. Its first call is for the
        token to be sampled. ValueError if the prompt does not fit into one pass.
        """
        import torch

        from nanoinfer import SamplingParams

        blocks: list[torch.Tensor] = []
        hook = self.llm.model.model.lm_head.register_forward_hook(lambda *call: blocks.append(call[2].float()))
        try:
            params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=True)
            self.llm.generate([tokens], params, use_tqdm=False)
        finally:
            hook.remove()
        rows = torch.cat(blocks[1:]) if len(blocks) > 1 else torch.empty(0)
        if len(rows) != len(tokens) - 1:
            raise ValueError(f"{len(tokens)} tokens: must fit into one pass")
        return rows.numpy()

    def add(
        self,
        index: int,
        prompt: list[int],
        new_tokens: int,
        adapter: str | None = None,
        sampling: dict[str, Any] | None = None,
    ) -> None:
        from nanoinfer import SamplingParams

        params = SamplingParams(max_new_tokens=new_tokens, **(sampling or {"temperature": 0.0, "ignore_eos": True}))
        self._index[self.engine.add_request(prompt, params, adapter=adapter)] = index
        self._emitted[index] = 0

    def busy(self) -> bool:
        return self.engine.has_unfinished()

    def step(self, emit: Callable[..., None]) -> None:
        for output in self.engine.step():
            index = self._index[output.request_id]
            tokens = output.token_ids
            emit(index, tokens[self._emitted[index] :], output.finished)
            self._emitted[index], self._cached[index] = len(tokens), output.cached_tokens
            if output.finished:
                del self._index[output.request_id]

    def cached_tokens(self, index: int) -> int:
        return self._cached[index]

    def save(self) -> None:
        if self.llm.config.cache_dir is not None:
            self.llm.save_cache()


def source_digest() -> str:
    """Tells apart two states of nanoinfer's code, without the benchmark's own, that have the same version."""
    package = Path(__file__).resolve().parent.parent.parent
    files = sorted(file for pattern in ("*.py", "*.cpp", "*.h") for file in package.rglob(pattern))
    kept = [file.read_bytes() for file in files if file.relative_to(package).parts[0] != "bench"]
    return hashlib.sha256(b"".join(kept)).hexdigest()[:8]


def without_tokenizer(model: Path, folder: Path) -> Path:
    """A checkpoint's config and weights, linked into an empty folder; a GGUF file is taken as it is."""
    if model.is_file():
        return model
    for pattern in ("config.json", "*.safetensors", "*.safetensors.index.json"):
        for file in model.glob(pattern):
            (folder / file.name).symlink_to(file.resolve())
    return folder
