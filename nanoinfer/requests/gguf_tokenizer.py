"""Makes the tokenizer of a GGUF file: token ids are those of llama.cpp, which splits a text by what the file names only.

transformers can read such a file, too, but always splits as GPT-2 or Llama does, whatever the file says.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.requests.gguf_header import GGUFHeader, read_header

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens that are found in a text before it is split
# How a text is split before bytes are merged: regular expressions, each within the parts that the one before has left.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
QWEN2 = WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BREAKS
LLAMA3 = WORDS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BREAKS
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BREAKS
)
# By `tokenizer.ggml.pre`, for those of our families. Source: llama.cpp's llama-vocab.cpp, and the models' tokenizer.json.
SPLITS = {
    **dict.fromkeys(("gpt-2", "mellum"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact"), (DIGIT, GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (QWEN2,)),
    "tekken": (TEKKEN,),
}
WHOLE_FIRST = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")  # a part that is a token is not merged
NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's other special tokens swallow the spaces behind them
SPACE = "▁"  # SentencePiece's


def read_gguf_tokenizer(path: Path) -> Any:
    """The transformers tokenizer of the GGUF file `path`, with its chat template; None if it has none.

    Raises UnsupportedModelError naming the kind of tokenizer or of splits that is unknown.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    header = read_header(path)
    kind, tokens = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(f"{path}: tokenizer.ggml.model={kind!r}: must be gpt2 or llama")
    types = header.get("tokenizer.ggml.token_type", [1] * len(tokens))
    backend = _byte_level(header, tokens) if kind == "gpt2" else _sentence_piece(header, tokens)
    strips = kind == "llama" and any(name in str(header.get("general.name")).lower() for name in ("phi-3", "phi3"))
    backend.add_tokens(
        [
            AddedToken(
                token, normalized=False, special=type_ != USER_DEFINED, rstrip=strips and token not in NOT_STRIPPING
            )
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    special = {
        f"{role}_token": tokens[number]
        for role, name in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
        if (number := header.get(f"tokenizer.ggml.{name}_token_id")) is not None and number < len(tokens)
    }
    _add_ends(backend, header, kind == "llama" or header.get("tokenizer.ggml.pre") in WHOLE_FIRST)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = header.get("tokenizer.chat_template")
    return tokenizer


def _byte_level(header: GGUFHeader, tokens: list[str]) -> Any:
    """Merges of bytes, as in GPT-2."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = header.get("tokenizer.ggml.pre")
    if name not in SPLITS:
        raise UnsupportedModelError(f"{header.path}: tokenizer.ggml.pre={name!r}: must be one of {', '.join(SPLITS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name in WHOLE_FIRST))
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[name]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(header: GGUFHeader, tokens: list[str]) -> Any:
    """SentencePiece's merges of characters: of two neighbours that make a token, those of the best token first. What is no
    token falls back to bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [merge for _, _, merge in sorted(_merges(tokens, vocab, header.get("tokenizer.ggml.scores")))]
    unknown = tokens[header.get("tokenizer.ggml.unknown_token_id", 0)]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = header.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(SPACE)] if prefix else []), normalizers.Replace(" ", SPACE)]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return backend


def _merges(tokens: list[str], vocab: dict[str, int], scores: Any) -> Iterator[tuple[float, int, tuple[str, str]]]:
    """Every way to make a token of two, with what sorts them: the best score, and then the longest left one, first."""
    for token, score in zip(tokens, scores.tolist(), strict=True):
        for i in range(1, len(token)):
            if token[:i] in vocab and token[i:] in vocab:
                yield -score, -i, (token[:i], token[i:])


def _add_ends(backend: Any, header: GGUFHeader, begins: bool) -> None:
    """Add the tokens that begin and end every text, if the file wants them; `begins`: or does not say so of the first."""
    from tokenizers.processors import TemplateProcessing

    ends = {
        "bos": header.get("tokenizer.ggml.add_bos_token", begins),
        "eos": header.get("tokenizer.ggml.add_eos_token"),
    }
    ids = {name: header.get(f"tokenizer.ggml.{name}_token_id") for name, wanted in ends.items() if wanted}
    known = {name: number for name, number in ids.items() if number is not None}
    if known:
        template = " ".join(name for name in ("bos", "$A", "eos") if name in known or name == "$A")
        backend.post_processor = TemplateProcessing(single=template, special_tokens=list(known.items()))
