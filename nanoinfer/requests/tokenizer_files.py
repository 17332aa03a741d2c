"""Reads a checkpoint's tokenizer files with transformers, and names a file that cannot be read."""

import json
import threading
from pathlib import Path
from typing import Any

from nanoinfer.errors import UnsupportedModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them must be there
JSON_FILES = ("tokenizer.json", "vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
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
    main_file = next((name for name in TOKENIZER_FILES if (path / name).is_file()), None)
    if main_file is None:
        if (path / TEKKEN_FILE).is_file():
            raise UnsupportedModelError(
                f"{path / TEKKEN_FILE}: is a tokenizer in Mistral's own format; write tokenizer.json beside it with "
                "transformers (pip install mistral-common; from transformers.integrations.mistral import "
                f"convert_tekken_tokenizer): convert_tekken_tokenizer({str(path / TEKKEN_FILE)!r})"
                f".save_pretrained({str(path)!r})"
            )
        return None
    if main_file == "tokenizer.model" and not (path / main_file).stat().st_size:  # which transformers would read
        raise UnsupportedModelError(f"{path / main_file}: is empty")
    try:
        with _importing:
            tokenizer = _read_with_transformers(path)
    except Exception as error:  # transformers and tokenizers raise many kinds, and few name the file
        raise UnsupportedModelError(_problem(path, main_file, error)) from error
    if not tokenizer.chat_template and (path / TEMPLATE_FILE).is_file():
        template = (read_object(path / TEMPLATE_FILE) or {}).get("chat_template")
        if not isinstance(template, str):
            raise UnsupportedModelError(f"{path / TEMPLATE_FILE}: must be a JSON object whose chat_template is text")
        tokenizer.chat_template = template
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
        if (path / name).is_file() and read_object(path / name) is None:
            return f"{path / name}: cannot be read as a JSON object"
    hints = {"tokenizer.model": "; it needs: pip install sentencepiece protobuf", "vocab.json": ", with its merges.txt"}
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{path / main_file}: cannot be read as a tokenizer{hints.get(main_file, '')} ({reason})"
