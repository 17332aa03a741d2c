"""Tokenizer files: what is read of them, and that a file which cannot be read, or what reading it needs, is named."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from nanoinfer import LLM, UnsupportedModelError
from nanoinfer.model.families import find_family
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.registry import MODEL_FAMILIES
from nanoinfer.requests import tokenizer_files
from nanoinfer.requests.tokenizer import Tokenizer
from tests.helpers.loading import sentencepiece_model

STORY = resolve_model_path("story")
# A SentencePiece model in little: a piece, how it was trained (which takes a length of two bytes), and a normalizer.
PIECES = b"\n\x04\n\x02hi" + b"\x12\xc8\x01" + bytes(200) + b"\x1a\x02\x0a\x00"
CHAT = [{"role": "user", "content": "Hi"}]


def story_files(target: Path, **files: bytes | None) -> Path:
    """A copy of the bundled model without its weights; `tokenizer__json=b"..."` puts that there, None takes a file away."""
    shutil.copytree(STORY, target, ignore=shutil.ignore_patterns("*.safetensors"))
    for name, content in files.items():
        file = target / name.replace("__", ".")
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
    return target


def say(file: Path, **values: object) -> None:
    """Put these values into a file with a JSON object; None takes one away."""
    said = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))


# --- the same as AutoTokenizer's -------------------------------------------------------------------------------------

CLASSES = ["TokenizersBackend", "PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer"]
MODEL_TYPES = sorted(find_family(architecture).model_type for architecture in MODEL_FAMILIES)


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, "gemma2", "of nobody", None])
@pytest.mark.parametrize("tokenizer_class", [*CLASSES, "GemmaTokenizer", "OfNobody", None])
def test_a_tokenizer_is_the_one_of_auto_tokenizer(
    model_type: str | None, tokenizer_class: str | None, tmp_path: Path
) -> None:
    path = story_files(tmp_path / "files")
    say(path / "config.json", model_type=model_type)
    say(path / "tokenizer_config.json", tokenizer_class=tokenizer_class)
    try:
        expected = AutoTokenizer.from_pretrained(path)
    except Exception as error:
        with pytest.raises(UnsupportedModelError, match=type(error).__name__):
            Tokenizer.from_pretrained(path)
        return
    read = tokenizer_files.read_tokenizer_files(path)
    assert type(read) is type(expected)
    assert read.special_tokens_map == expected.special_tokens_map
    assert read.added_tokens_decoder == expected.added_tokens_decoder
    assert read.chat_template == expected.chat_template
    assert read.all_special_tokens == expected.all_special_tokens
    assert read.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()


# --- files that cannot be read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (STORY / "tokenizer.json").read_bytes()[:5000],
        b"[]",
        b'{"model": {"type": "Newest"}, "added_tokens": []}',
    ],
)
def test_an_unreadable_tokenizer_json_is_named_before_the_weights_are_looked_for(
    content: bytes, tmp_path: Path
) -> None:
    path = story_files(tmp_path / "broken", tokenizer__json=content)
    with pytest.raises(UnsupportedModelError, match=r"broken/tokenizer\.json: ") as caught:
        LLM(path)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is not None


# --- tokenizer.model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found: 404</html>", PIECES[:-1], b"\n\xff"],
    ids=["empty", "a page", "but a byte", "within a number"],
)
def test_a_tokenizer_model_that_is_not_complete_is_named(content: bytes, tmp_path: Path) -> None:
    """transformers advises to install tiktoken for these, and reads the empty one, to which every prompt is empty."""
    path = story_files(tmp_path / "pieces", tokenizer__json=None, tokenizer__model=content)
    with pytest.raises(UnsupportedModelError, match=r"pieces/tokenizer\.model: "):
        LLM(path)


def test_a_tokenizer_in_mistrals_own_format_is_called_so(tmp_path: Path) -> None:
    path = story_files(tmp_path / "tekken", tokenizer__json=None, tokenizer_config__json=None, tekken__json=b"{}")
    with pytest.raises(UnsupportedModelError, match=r"tekken/tekken\.json: is a tokenizer in Mistral's own"):
        LLM(path)


def test_a_tokenizer_model_alone_is_read_where_sentencepiece_is(tmp_path: Path) -> None:
    """SentencePiece itself is the oracle."""
    pytest.importorskip("google.protobuf")
    lines = [line for line in Path(__file__).read_text().splitlines() if line.strip()]
    model, oracle = sentencepiece_model(lines, 400)
    config = json.dumps({"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}).encode()
    files = {"tokenizer__json": None, "tokenizer__model": model, "tokenizer_config__json": config}
    tokenizer = Tokenizer.from_pretrained(story_files(tmp_path / "pieces", **files))
    assert tokenizer is not None
    text = "Once upon a time: the tokenizer, é and 😀"
    assert tokenizer.encode(text) == oracle.encode(text)
    assert tokenizer.decode(oracle.encode(text)) == text
    assert tokenizer.eos_token_id == oracle.eos_id()


# --- chat templates --------------------------------------------------------------------------------------------------


SHOUT = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"


@pytest.mark.parametrize(
    ("jinja", "in_config", "text"),
    [(None, None, "HI"), (b"a chat", None, "a chat"), (None, "in the config", "in the config")],
)
def test_a_chat_template_in_a_json_file_of_its_own_is_used_where_there_is_no_other(
    jinja: bytes | None, in_config: str | None, text: str, tmp_path: Path
) -> None:
    in_json = json.dumps({"chat_template": SHOUT}).encode()
    path = story_files(tmp_path / "files", chat_template__jinja=jinja, chat_template__json=in_json)
    say(path / "tokenizer_config.json", chat_template=in_config)
    tokenizer = Tokenizer.from_pretrained(path)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == text


@pytest.mark.parametrize("tokenizer_class", ["TokenizersBackend", None])  # read in two ways
def test_named_chat_templates_are_used_as_in_transformers(tokenizer_class: str | None, tmp_path: Path) -> None:
    path = story_files(tmp_path / "named")
    say(path / "tokenizer_config.json", tokenizer_class=tokenizer_class)
    (path / "chat_template.jinja").write_text("a chat")
    (path / "additional_chat_templates").mkdir()
    for name, template in {"tool_use": "{{ tools[0].function.name }} is a tool", "shout": SHOUT}.items():
        (path / "additional_chat_templates" / f"{name}.jinja").write_text(template)
    tokenizer, expected = Tokenizer.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert tokenizer is not None
    tools = [{"type": "function", "function": {"name": "sun", "description": "", "parameters": {"type": "object"}}}]
    for variables, text in (({}, "a chat"), ({"tools": tools}, "sun is a tool"), ({"chat_template": "shout"}, "HI")):
        assert tokenizer.decode(tokenizer.encode_chat(CHAT, variables)) == text
        assert expected.apply_chat_template(CHAT, tokenize=False, **variables) == text
