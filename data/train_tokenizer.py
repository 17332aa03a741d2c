"""Train the byte-level BPE tokenizer on the corpus and save it as Hugging Face files.

Every digit is a separate token, so a number is read digit by digit. The chat template writes `<s>` once and then, for
every message, its role token, its content and `</s>`, with no white space between: the ids of a longer conversation
start with the ids of a shorter one, so that the prefix cache matches them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

DATA = Path(__file__).parent
VOCAB_SIZE = 2048
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('role must be system, user or assistant, got ' + message['role']) }}"
    "{%- endif %}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def texts(path: Path) -> Iterator[str]:
    """Every text of the corpus file, and every message of its conversations."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            yield from [document["text"]] if "text" in document else (m["content"] for m in document["messages"])


def train(corpus: Path) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `VOCAB_SIZE` entries, `SPECIAL` first.

    Raises:
        ValueError: the corpus has too little text for that many merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts(corpus), trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"vocabulary has {tokenizer.get_vocab_size()} entries, wanted {VOCAB_SIZE}: more text needed")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=SPECIAL[3:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def check(folder: Path) -> None:
    """Load the files as a user would and check round trips and what this module says about the chat template.

    Raises:
        ValueError: a check fails.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("Once upon a time", "  two  spaces\n\n\tand 1234 .", "Grüße, 你好 🦊", "it 's , ok !", "\x00\x7f"):
        ids = tokenizer(text).input_ids
        if ids[0] != tokenizer.bos_token_id or tokenizer.decode(ids, skip_special_tokens=True) != text:
            raise ValueError(f"round trip fails for {text!r}")
    talk = [
        {"role": "user", "content": "Hi 12"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "ok"},
    ]
    first = tokenizer.apply_chat_template(talk[:1], add_generation_prompt=True, return_dict=False)
    reply = [*tokenizer(talk[1]["content"], add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    longer = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    if longer[: len(first) + len(reply)] != first + reply:
        raise ValueError("a conversation's ids do not start with the ids of its first turn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=DATA / "build" / "train.jsonl", help="corpus file")
    parser.add_argument("--out", type=Path, default=DATA / "build" / "tokenizer", help="folder for the tokenizer files")
    args = parser.parse_args()
    tokenizer = train(args.corpus)
    tokenizer.save_pretrained(args.out)
    check(args.out)
    text = next(texts(args.corpus))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    print(
        f"{args.out}: {len(tokenizer)} entries, {len(text.encode()) / len(ids):.2f} bytes per token on the first document"
    )


if __name__ == "__main__":
    main()
