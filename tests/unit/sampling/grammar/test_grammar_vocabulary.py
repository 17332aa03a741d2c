"""Vocabularies: the bytes of tokens, for tokenizers of several kinds; and what a compiler keeps."""

import dataclasses
import gc
import json
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from nanoinfer import Engine, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.llm import make_engine
from nanoinfer.model.random_model import random_model
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.tokenizer import IncrementalDetokenizer, Tokenizer
from nanoinfer.sampling.grammar import compiler as compiler_module
from nanoinfer.sampling.grammar.compiler import Compiler, Grammar, Grammars
from nanoinfer.sampling.grammar.vocabulary import Vocabulary
from tests.helpers.engines import LetterTokenizer, finish
from tests.helpers.grammars import story_compiler, story_tokenizer
from tests.helpers.real_tokenizers import real_tokenizer
from tests.helpers.waiting import Worker, until


def byte_level() -> Backend:
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {"ab": 256, "Ġthe": 257, "Ã©": 258, "<end>": 259}
    backend = Backend(models.BPE(vocab, [("a", "b"), ("Ã", "©")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return backend


def byte_fallback() -> Backend:
    """As in a SentencePiece vocabulary."""
    vocab = {"<end>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {text: 257 + i for i, text in enumerate(["▁", "a", "b", "ab", "▁a", "▁ab", "é", "{", '"', ":"])}
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab")]
    backend = Backend(models.BPE(vocab, merges, byte_fallback=True, unk_token="<end>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def words() -> Backend:
    backend = Backend(models.WordLevel({"<end>": 0, "yes": 1, "no": 2, "w3": 3}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def tokenizer_of(backend: Backend) -> Tokenizer:
    backend.add_special_tokens(["<end>"])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>"))


@pytest.mark.parametrize(
    ("make", "size", "expected"),
    [
        (byte_level, 262, {256: b"ab", 257: b" the", 258: "é".encode(), 260: b"", 261: b""}),
        (byte_fallback, 267, {1: b"\x00", 256: b"\xff", 260: b"ab", 262: b" ab", 263: "é".encode()}),
        (words, 4, {1: b" yes", 2: b" no"}),
    ],
)
def test_tokens_have_the_bytes_that_they_decode_to(
    make: Callable[[], Backend], size: int, expected: dict[int, bytes]
) -> None:
    vocabulary = Vocabulary(tokenizer_of(make()), size, [])
    assert len(vocabulary.tokens) == size + 1
    assert {i: vocabulary.tokens[i] for i in expected} == expected
    assert len(vocabulary.special) == 1


def test_the_bundled_vocabulary_decodes_as_its_tokenizer_says() -> None:
    vocabulary, tokenizer = story_compiler().vocabulary, story_tokenizer()
    for i, token in enumerate(vocabulary.tokens[: vocabulary.size]):
        assert tokenizer.decode([i], skip_special_tokens=False) == token.decode(errors="replace")


@pytest.mark.parametrize(
    ("make", "size", "kind", "text", "outputs"),
    [
        (byte_level, 260, "choice", '["ab", "aé"]', ["ab", "aé"]),
        (byte_fallback, 267, "regex", '\\{"ab":[ab]é', ['{"ab":bé']),
        (None, 128, "json_schema", '{"const": {"a": 1}}', ['{"a":1}']),
    ],
)
def test_grammars_work_with_every_kind_of_tokenizer(
    make: Callable[[], Backend] | None, size: int, kind: str, text: str, outputs: list[str]
) -> None:
    tokenizer = LetterTokenizer() if make is None else tokenizer_of(make())
    vocabulary = Vocabulary(tokenizer, size, [])
    for output in outputs:
        ids = vocabulary.encode(output.encode())
        assert b"".join(vocabulary.tokens[i] for i in ids) == output.encode()
        matcher = Compiler(vocabulary).compile(Grammar(kind, text)).matcher(frozenset())
        for token in ids:
            assert matcher.accept(token)
        assert matcher.must_stop


def test_a_grammar_that_words_cannot_be_masked_for_is_refused() -> None:
    """It forces a space, for which alone there is no token, and the compiler then knows no mask."""
    compiler = Compiler(Vocabulary(tokenizer_of(words()), 4, []))
    with pytest.raises(ValueError, match="no output of this model matches it"):
        compiler.compile(Grammar("regex", " (yes|no) w3"))


def test_a_text_that_the_tokenizer_cannot_write_is_written_with_the_longest_tokens() -> None:
    vocabulary = Vocabulary(tokenizer_of(words()), 4, [])
    assert vocabulary.encode(b" yes no w3") == [1, 2, 3]
    assert vocabulary.encode(b" yes nothing") == [1, 2]  # nothing stands for the rest

    class Failing(LetterTokenizer):
        def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
            raise OSError

    failing = Vocabulary(Failing(), 128, [3])
    assert failing.encode(b"abc") == [*b"abc"]
    assert Compiler(failing).compile(Grammar("regex", "abc[xy]")).matcher(frozenset()).forced_tokens() == [*b"abc"]


def test_a_vocabulary_that_is_smaller_than_the_tokenizers_leaves_the_others_out() -> None:
    assert len(Vocabulary(tokenizer_of(byte_level()), 257, []).tokens) == 258


def flagged(make: Callable[[], Backend]) -> Tokenizer:
    """With special tokens that are flagged and not named, as most of Llama 3's and Phi-3's are, and added ones that are
    text, as thousands of Gemma 3's."""
    backend = make()
    backend.add_special_tokens(["<|end|>", "<|user|>"])
    backend.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("<tool>", normalized=False)])
    return tokenizer_of(backend)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_special_token_is_no_text_whether_it_is_named_or_only_flagged(make: Callable[[], Backend]) -> None:
    tokenizer = flagged(make)
    ids, size = tokenizer.hf_tokenizer.get_vocab(), len(tokenizer.hf_tokenizer)
    vocabulary = Vocabulary(tokenizer, size, [ids["ab"]])
    assert vocabulary.special == {ids["<end>"], ids["<|end|>"], ids["<|user|>"], ids["ab"]}
    compiler = Compiler(vocabulary)
    for text in ("<|end|>", "<|user|>"):
        compiled = compiler.compile(Grammar("regex", f"{re.escape(text)}|z"))
        assert not compiled.matcher(frozenset()).accept(ids[text])
        matcher = compiled.matcher(frozenset())
        for token in vocabulary.encode(text.encode()):
            assert matcher.accept(token)
        assert matcher.must_stop
    added = '["<tool>▁▁"]' if make is byte_level else '["<tool>  "]'  # "▁" is a space where a vocabulary writes it so
    matcher = compiler.compile(Grammar("choice", added)).matcher(frozenset())
    assert [matcher.accept(ids[text]) for text in ("<tool>", "▁▁")] == [True, True]
    assert matcher.must_stop


def test_an_end_token_ends_a_grammar_and_is_no_text_of_it() -> None:
    """Whatever it is flagged; here it is an ordinary token."""
    tokenizer = tokenizer_of(byte_level())
    end = tokenizer.hf_tokenizer.get_vocab()["ab"]
    grammar = Compiler(Vocabulary(tokenizer, 262, [end])).compile(Grammar("regex", "(ab)*"))
    for stops in (frozenset([end]), frozenset[int]()):
        assert grammar.matcher(stops).accept(end) == bool(stops)
        a, b = (tokenizer.hf_tokenizer.get_vocab()[letter] for letter in "ab")
        assert [grammar.matcher(stops).accept(token) for token in (a, b)] == [True, False]
        assert [(matcher := grammar.matcher(stops)).accept(a), matcher.accept(end)] == [True, False]


@pytest.mark.parametrize("prompt", [[], [0, 0], [259], [*[259] * 3, *[0] * 9]])
def test_the_text_of_a_grammar_begins_with_its_space_whatever_precedes_it(prompt: list[int]) -> None:
    """This tokenizer leaves out a space at the start of a text."""
    tokenizer = tokenizer_of(byte_fallback())
    ids = tokenizer.hf_tokenizer.get_vocab()
    assert tokenizer.decode([ids["▁a"]]) == "a"
    params = SamplingParams(regex=" a ab", max_new_tokens=9)
    new_matcher = Grammars(tokenizer, 267, [0]).prepare(params)
    (req,) = RequestBuilder(267, [0], tokenizer).build(
        0, np.array(prompt, dtype=np.int64), params, None, None, new_matcher
    )
    for token in ("▁a", "▁ab"):
        req.append(ids[token])
    assert (req.text, req.finish_reason) == (" a ab", "stop")


def test_a_tokenizer_whose_tokens_have_no_bytes_of_their_own_is_refused() -> None:
    class Backwards(LetterTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            return super().decode(list(token_ids)[::-1])

    class Silent(LetterTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            return ""

    class Broken(LetterTokenizer):
        def decode(self, token_ids: Any) -> str:
            raise KeyError("token")

    for kind, reason in (
        (Backwards, "does not begin with"),
        (Silent, "no token that stands"),
        (Broken, "cannot decode"),
    ):
        with pytest.raises(ValueError, match=reason):
            Vocabulary(kind(), 128, [])


# --- what a compiler keeps -------------------------------------------------------------------------------------------


def test_nothing_of_a_vocabulary_stays_when_its_engine_is_gone() -> None:
    compiler = Compiler(Vocabulary(LetterTokenizer(), 128, [3]))
    matcher = compiler.compile(Grammar("regex", "a[xyz]b")).matcher(frozenset([3]))
    assert matcher.forced_tokens() == [ord("a")]
    gone = weakref.ref(compiler.vocabulary)
    del compiler, matcher
    until(lambda: gc.collect() >= 0 and gone() is None, "the end of the thread that compiled")


def test_threads_that_want_one_grammar_have_it_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, starts, asking = Compiler(story_compiler().vocabulary), list[str](), list[int]()
    original = compiler_module._start

    def counting(text: str, *args: Any) -> None:
        until(lambda: len(asking) == 8, "that all threads ask")
        starts.append(text)
        original(text, *args)

    def ask(number: int) -> None:
        asking.append(number)
        compiler.compile(Grammar("regex", "a+")).matcher(frozenset())

    monkeypatch.setattr(compiler_module, "_start", counting)
    for worker in [Worker(ask, number) for number in range(8)]:
        worker.result()
    assert len(starts) == 1


def test_only_the_grammars_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_CACHED", 2)
    compiler = Compiler(story_compiler().vocabulary)
    first = compiler.compile(Grammar("regex", "a"))
    compiler.compile(Grammar("regex", "b"))
    assert compiler.compile(Grammar("regex", "a")) is first
    compiler.compile(Grammar("regex", "c"))  # "b" goes
    assert compiler.compile(Grammar("regex", "a")) is first
    assert len(compiler._cache) == 2


# --- tokenizers of real models, which flag many more special tokens than they name ------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["straße", "😀", "a b"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
REGEX = r" [a-z ]{3,9}: (é|中|👩)[0-9]{2}"


@pytest.fixture(scope="module", params=["llama3_1", "llama3", "gemma3", "qwen3", "deepseek_v3", "gptoss"])
def real(request: pytest.FixtureRequest) -> Tokenizer:
    read = Tokenizer.from_pretrained(real_tokenizer(request.param))
    assert read is not None
    return read


@pytest.fixture(scope="module")
def engine(real: Tokenizer) -> Engine:
    """Random weights behind a real tokenizer."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = random_model(vocab_size=len(real.hf_tokenizer), num_key_value_heads=1, **sizes)
    return make_engine(dataclasses.replace(model, tokenizer=real), EngineConfig(8, 4096, 512))


def outputs(engine: Engine, **fields: object) -> list[str]:
    """Texts of random outputs, each of which must be what transformers decodes the tokens to."""
    engine.add_request("Hi:", SamplingParams(max_new_tokens=200, temperature=1.0, n=8, **fields))  # type: ignore[arg-type]
    (output,) = finish(engine).values()
    for completion in output.outputs:
        ids, decode = completion.token_ids, engine.builder.tokenizer.hf_tokenizer.decode
        assert completion.finish_reason == "stop"
        assert completion.text == decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [completion.text for completion in output.outputs]


@pytest.mark.slow
def test_json_schemas_expressions_and_choices_hold(engine: Engine) -> None:
    for text in outputs(engine, json_schema=SCHEMA):
        jsonschema.validate(json.loads(text), SCHEMA)
    for text in outputs(engine, regex=REGEX):
        assert re.fullmatch(REGEX, text)
    assert {*outputs(engine, choice=["yes", " no", "中 é"])} <= {"yes", " no", "中 é"}


@pytest.mark.slow
def test_no_special_token_passes_as_text(engine: Engine, real: Tokenizer) -> None:
    flagged = {i for i, token in real.hf_tokenizer.added_tokens_decoder.items() if token.special}
    names = [real.decode([i], skip_special_tokens=False) for i in sorted(flagged)]
    assert set(outputs(engine, choice=names)) <= {*names}  # spelled with ordinary tokens


@pytest.mark.slow
def test_text_comes_out_token_by_token_as_it_is_decoded_at_once(real: Tokenizer) -> None:
    ids = real.encode(" Schöne Grüße, 日本語 👩‍🚀!\n\tx = [1, 2]  # ok", add_special_tokens=False) * 3
    for cut in range(0, len(ids), 3):
        detokenizer = IncrementalDetokenizer(real, ids[:cut])
        out = "".join(detokenizer.add(token) for token in ids[cut:]) + detokenizer.flush()
        assert real.decode(ids[:cut]).rstrip("\ufffd") + out == real.decode(ids)
