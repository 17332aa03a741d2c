"""Reads a checkpoint's tokenizer files with transformers, and names a file that cannot be read."""

import json
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanoinfer.errors import UnsupportedModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them must be there
JSON_FILES = ("tokenizer.json", "vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SENTENCEPIECE_NEEDS = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}  # package → module
BACKEND = ("TokenizersBackend", "PreTrainedTokenizerFast")  # new and old name of the class for a plain tokenizer.json
BELIEVED = ("llama", "qwen3", "gemma3_text", "phi3")  # model types whose files AutoTokenizer then reads like that
TEKKEN_FILE = "tekken.json"
_importing = threading.Lock()  # transformers imports its parts when they are asked for, and two threads may not do that
TEMPLATE_FILE = "chat_template.json"  # transformers reads it only for its processors


def read_tokenizer_files(path: Path) -> Any:
    """The transformers tokenizer of a checkpoint directory; None if it has no tokenizer files. Its chat template comes from
    the first of chat_template.jinja, tokenizer_config.json and chat_template.json that exists and has one.

    Raises UnsupportedModelError naming the file that cannot be read, or the package needed to read it.
    """
    present = [name for name in TOKENIZER_FILES if (path / name).is_file()]
    if not present and (path / TEKKEN_FILE).is_file():
        raise UnsupportedModelError(f"{path / TEKKEN_FILE}: {_convert_tekken(path)}")
    if not present:
        return None
    if present[0] == "tokenizer.model" and not (path / present[0]).stat().st_size:  # which transformers would read
        raise UnsupportedModelError(f"{path / present[0]}: is empty")
    try:
        with _importing:
            tokenizer = _read_with_transformers(path)
    except Exception as error:  # transformers and tokenizers raise many kinds, and few name the file
        raise UnsupportedModelError(_problem(path, present[0], error)) from error
    if not tokenizer.chat_template and (path / TEMPLATE_FILE).is_file():
        tokenizer.chat_template = _separate_template(path / TEMPLATE_FILE)
    return tokenizer


def _read_with_transformers(path: Path) -> Any:
    """What `AutoTokenizer.from_pretrained` returns, sooner. To look at three keys, it imports the class of the model's
    configuration, which takes a second; and importing AutoTokenizer itself takes a quarter of one. Where mistral-common is
    installed, it would prefer tekken.json to tokenizer.json, and then there is no chat template: so `mistral_format=False`.
    """
    config, settings = read_object(path / "config.json") or {}, read_object(path / "tokenizer_config.json") or {}
    model_type, tokenizer_class = config.get("model_type"), settings.get("tokenizer_class")
    from_outside = "auto_map" in config or "auto_map" in settings
    if from_outside or not isinstance(model_type, str) or not isinstance(tokenizer_class, str):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, mistral_format=False)
    if model_type in BELIEVED and tokenizer_class in BACKEND:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(path))
    from transformers import AutoTokenizer, PretrainedConfig

    looked_at = {key: config[key] for key in ("model_type", "model_name", "tokenizer_class") if key in config}
    light = PretrainedConfig(name_or_path=str(path), **looked_at)
    return AutoTokenizer.from_pretrained(str(path), config=light, trust_remote_code=False, mistral_format=False)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file cannot be read or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _problem(path: Path, main_file: str, error: Exception) -> str:
    """The message for tokenizer files whose reading raised `error`. The vocabulary is read from `main_file`."""
    for name in JSON_FILES:
        if (path / name).is_file() and (reason := _not_an_object(path / name)):
            return f"{path / name}: {reason}"
    if main_file == "tokenizer.model":
        missing = [package for package, module in SENTENCEPIECE_NEEDS.items() if not _is_installed(module)]
        if missing:
            are = "are" if len(missing) > 1 else "is"
            what = f"is a SentencePiece model, and {' and '.join(missing)} {are} not installed"
            return f"{path / main_file}: {what}; to read it: pip install {' '.join(missing)}"
    if main_file == "vocab.json" and not (path / "merges.txt").is_file():
        return f"{path / main_file}: no merges.txt beside it"
    return f"{path / main_file}: cannot be read as a tokenizer ({type(error).__name__}: {' '.join(str(error).split())})"


def _convert_tekken(path: Path) -> str:
    return (
        "is a tokenizer in Mistral's own format; write tokenizer.json beside it with transformers (pip install "
        "mistral-common; from transformers.integrations.mistral import convert_tekken_tokenizer): "
        f"convert_tekken_tokenizer({str(path / TEKKEN_FILE)!r}).save_pretrained({str(path)!r})"
    )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _not_an_object(path: Path) -> str | None:
    """Why a file is not the JSON object that it should be; None if it is one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"cannot be read as JSON ({error})"
    return None if isinstance(value, dict) else f"must be a JSON object, is {type(value).__name__}"


def _separate_template(path: Path) -> str:
    reason = _not_an_object(path)
    if reason is None:
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(template, str):
            return template
        reason = f"chat_template={template!r}: must be text"
    raise UnsupportedModelError(f"{path}: {reason}")
