"""The bytes that each token stands for, read off a tokeniser's vocabulary and the kind of its decoder.

Knows the two families nearly every decoder-only model belongs to: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and
pieces with byte fallback (Llama 2, Mistral, Gemma), where a space is written "▁". Knows nothing of requests. A
tokeniser of another kind has no such table, and its text is decoded through a window (`text_decoder.py`).
"""

import json
import re
from collections.abc import Callable

from msgspec import Struct
from tokenizers import Tokenizer

_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SPACE = "▁"
_KEEPING_SPLITS = ("ByteLevel", "Split", "Digits", "Metaspace", "Punctuation")
NFC_SHORTENS = 3
"""Times, at most, that composing characters shortens a text in UTF-8."""


class TokenBytes(Struct, frozen=True):
    """`shown[token]` is what the token adds to a text; b"" for special tokens and for numbers no token has.

    `drop_spaces`: how many spaces at the very beginning of a text are not shown. `bare_first`: of the first shown
    token, none of the spaces are.
    """

    shown: list[bytes]
    drop_spaces: int = 0
    bare_first: bool = False


def token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """None when this tokeniser's text is not simply the bytes of its tokens, one after another."""
    if tokenizer.decoder is None:
        return None
    kind = json.loads(tokenizer.decoder.__getstate__())
    if kind["type"] == "Sequence" and len(kind["decoders"]) == 1:
        kind = kind["decoders"][0]
    match kind["type"]:
        case "ByteLevel":
            return TokenBytes(_table(tokenizer, _byte_level))
        case "Metaspace" if kind["replacement"] == _SPACE:
            return TokenBytes(_table(tokenizer, _spaced), bare_first=kind["prepend_scheme"] != "never")
        case "Sequence":
            drop_spaces = _spaces_dropped(kind["decoders"])
            if drop_spaces is not None:
                return TokenBytes(_table(tokenizer, _byte_fallback), drop_spaces=drop_spaces)
    return None


def longest_token(tokenizer: Tokenizer, table: TokenBytes | None) -> int | None:
    """The most bytes of text, in UTF-8, that one token can stand for.

    None where a token can stand for any number: a tokeniser may have one for all that is unknown to it, or drop or
    shorten parts of a text before it looks for tokens. Where that is not known to be otherwise, it is assumed. (Some
    byte-level vocabularies lack a few control characters and drop them: a text of little else counts for its length.)
    """
    if table is None:
        return None
    spaced = getattr(tokenizer.model, "byte_fallback", False)
    before, normalizer = _steps(tokenizer.pre_tokenizer), _steps(tokenizer.normalizer)
    if not spaced and "ByteLevel" not in (step["type"] for step in before):
        return None
    if any(step["type"] not in _KEEPING_SPLITS or step.get("behavior") == "Removed" for step in before):
        return None
    if any(step["type"] not in ("Prepend", "Replace", "NFC") for step in normalizer):
        return None
    if any(step["type"] == "Replace" and step["content"] != _SPACE for step in normalizer):
        return None
    if any(added.lstrip or added.rstrip for added in tokenizer.get_added_tokens_decoder().values()):
        return None
    # What is shown as a space may have been written as the sign for it, of three bytes.
    longest = max(len(shown) + (2 * shown.count(b" ") if spaced else 0) for shown in table.shown)
    return longest * (NFC_SHORTENS if any(step["type"] == "NFC" for step in normalizer) else 1)


def _steps(component: object) -> list[dict[str, object]]:
    """A part of a tokeniser, a sequence taken apart."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())  # type: ignore[arg-type]
    nested: list[dict[str, object]] = state.get("pretokenizers") or state.get("normalizers") or [state]
    return nested


def _spaces_dropped(steps: list[dict[str, object]]) -> int | None:
    """How many leading spaces the usual sequence with byte fallback drops; None when it is another sequence."""
    usual = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if steps[:3] != usual:
        return None
    match steps[3:]:
        case []:
            return 0
        case [{"type": "Strip", "content": " ", "start": int(start), "stop": 0}]:
            return start
    return None


def _table(tokenizer: Tokenizer, read: Callable[[str], bytes]) -> list[bytes]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    shown = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token in vocabulary.items():
        shown[token] = read(piece)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        shown[token] = b"" if added.special else read(added.content)
    return shown


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_of_character()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:  # an added token, written as it is
        return piece.encode()


def _byte_fallback(piece: str) -> bytes:
    if _BYTE_PIECE.fullmatch(piece):
        return bytes([int(piece[3:5], 16)])
    return _spaced(piece)


def _spaced(piece: str) -> bytes:
    return piece.replace(_SPACE, " ").encode()
