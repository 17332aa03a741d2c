"""Tiny checkpoints whose greedy output is scripted: give the pieces of text, and they come out one token after the other.

    path = make("folder", ["<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>"], template=...)

The vocabulary is bytes, the pieces, and added tokens. `special`: which of the added tokens tokenizer.json flags special;
`named`: whether tokenizer_config.json names them, too (Llama 3, Gemma 3, Mistral and SmolLM2 name only some of theirs).
The first piece follows the token `start`, the last token of the rendered prompt. Each piece may stand in the script once.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import bytes_to_unicode

END, PAD = "<|im_end|>", "<|endoftext|>"


LETTERS = bytes_to_unicode()  # byte-level BPE's printable letter for each byte


def spell(text: str | bytes) -> str:
    """Text as byte-level BPE writes it."""
    return "".join(LETTERS[b] for b in (text.encode() if isinstance(text, str) else text))


def make(
    folder: str | Path,
    script: Sequence[str | bytes],
    template: str | None = None,
    added: Sequence[str] = ("<|im_start|>", "<tool_call>", "</tool_call>"),
    special: Sequence[str] = ("<|im_start|>",),
    named: bool = True,
    start: str = "\n",
    context: int = 4096,
) -> Path:
    """Write the checkpoint, and return its folder."""
    path = Path(folder)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    vocab = {LETTERS[b]: b for b in range(256)}
    tokens = [PAD, END, *added]
    words = [piece if piece in tokens else spell(piece) for piece in script]
    for word in words:
        if word not in tokens:
            vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    flagged = {PAD, END, *special}
    for token in tokens:
        tokenizer.add_tokens([AddedToken(token, special=token in flagged, normalized=False)])
    more = {"additional_special_tokens": list(special)} if named and special else {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, **more)
    fast.chat_template = template
    fast.save_pretrained(path)

    end = tokenizer.token_to_id(END)
    ids = [tokenizer.token_to_id(word) for word in words]
    assert len({*ids}) == len(ids), "each piece of a script may stand in it once"
    size = (tokenizer.get_vocab_size() + 15) // 16 * 16
    width = (size + 31) // 32 * 32
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=width, intermediate_size=32, num_hidden_layers=1, num_attention_heads=width // 16,
        num_key_value_heads=width // 16, head_dim=16, max_position_embeddings=context, bos_token_id=None, eos_token_id=end,
        pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()  # a layer changes nothing: the head sees the newest token alone
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.zero_()
        embedding[:size, :size] = torch.eye(size)
        head.zero_()
        head[end] = 0.05  # what the script does not know ends
        first = tokenizer.token_to_id(start if start in tokens else spell(start))
        for before, after in zip([first, *ids], [*ids, end], strict=True):
            head[after, before] = 1.0
    model.save_pretrained(path)
    return path
