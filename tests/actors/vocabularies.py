"""Small real tokenisers for tests, made on the spot, one of each family; and the recorders that actors are put between.

Knows the `tokenizers` library. Knows nothing of what is tested with them.
"""

import asyncio
import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from actors.actor import Actor, Address, Mailbox
from actors.directory import ConnectionInbox, Directory
from actors.vocabulary import Vocabulary
from protocol.messages import Control, Data

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 2
CORPUS = [
    "The quick brown fox jumps over the lazy dog. A rota is the list that says whose turn it is.",
    "Observations: the stop text, END, STOP and ### must not be shown; naïve café über 你好世界 😀👩‍👩‍👧 one two three",
] * 4


@cache
def byte_level() -> Tokenizer:
    """As SmolLM, Llama 3 and Qwen have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("two words é", special=False)])
    return tokenizer


@cache
def byte_fallback(strip: int = 1) -> Tokenizer:
    """As Llama 2 and Mistral have it, and with `strip` 0 as Gemma has it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: token for token, piece in enumerate(pieces)},
            [(first, second) for first, second in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if strip:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    ends = [decoders.Strip(" ", strip, 0)] if strip else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """SentencePiece without byte fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    )
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    """Of a kind whose tokens have no bytes of their own: the text depends on neighbours."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    )
    return tokenizer


def cached_models() -> list[Path]:
    """Folders of models that were really downloaded or converted on this machine."""
    return [file.parent for file in (Path.home() / ".cache/rota/models").glob("**/tokenizer.json")]


@cache
def chat_vocabulary() -> Vocabulary:
    return Vocabulary(byte_level(), CHATML, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})


class Recorder:
    """Stands where an address is wanted, and keeps what is sent. `full`: it takes no data."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.full = False

    def offer(self, message: object) -> bool:
        assert isinstance(message, Data)
        if not self.full:
            self.messages.append(message)
        return not self.full

    def tell(self, message: object) -> None:
        assert not isinstance(message, Data)
        self.messages.append(message)

    def address(self) -> Address[Any]:
        return cast(Address[Any], self)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    def take(self) -> list[Any]:
        messages, self.messages = self.messages, []
        return messages


def directory_of(*recorders: Recorder) -> Directory:
    """Connections numbered from 1."""
    directory = Directory()
    for number, recorder in enumerate(recorders, start=1):
        directory.add(cast(Address[ConnectionInbox], recorder), number)
    return directory


async def send(actor: Actor[Any], *messages: object) -> None:
    """Put all of them in the mailbox, then let the actor run until it is empty: control overtakes data."""
    mailbox: Mailbox[Any] = actor.mailbox
    for message in messages:
        if isinstance(message, Control):
            mailbox.tell(message)
        else:
            assert mailbox.offer(cast(Data, message))
    running = asyncio.create_task(actor.run())
    while any(lane.depth for lane in mailbox.statistics().values()):
        await asyncio.sleep(0)
        if running.done():
            break
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
