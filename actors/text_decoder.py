"""From tokens to text, one token at a time, for one answer.

Knows bytes and characters: half a character is never given out. Knows nothing of stop texts, of end tokens, or of how
an answer ends. Two decoders behind one interface: over the bytes of the tokens where those are known, else over a
window of the last tokens.
"""

import codecs
from typing import Protocol

from tokenizers import Tokenizer

from actors.token_bytes import TokenBytes

_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 16
"""Tokens that a window waits for a character to be complete: more than any character takes."""
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextDecoder(Protocol):
    """The text of one answer. Invalid UTF-8 that the model wrote becomes U+FFFD, as in `Tokenizer.decode`."""

    @property
    def unfinished(self) -> bool:
        """Whether the last tokens hold the beginning of a character."""
        ...

    def push(self, token: int) -> str:
        """The characters that are complete now and were not before."""
        ...

    def finish(self) -> str:
        """What stands for an unfinished character after which the model itself ended the answer."""
        ...

    def cut(self) -> str:
        """What is still to be shown when the answer ended from outside: an unfinished character is not."""
        ...


class ByteDecoder:
    """Decodes the bytes of the tokens.

    Equals `Tokenizer.decode` but for invalid UTF-8 in tokens of byte fallback: there the whole run of byte tokens
    would become U+FFFD, valid characters and all, which cannot be known before it ends. Here the valid ones stay.
    """

    __slots__ = ("_at_start", "_drop_spaces", "_shown", "_token_bytes", "_utf8", "unfinished")

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._shown = token_bytes.shown
        self._drop_spaces = token_bytes.drop_spaces
        self._at_start = token_bytes.bare_first or token_bytes.drop_spaces > 0
        self._utf8 = _new_utf8_decoder(errors="replace")
        self.unfinished = False

    def push(self, token: int) -> str:
        if token >= len(self._shown):
            return ""
        shown = self._shown[token]
        if shown.isascii() and not self.unfinished:
            text = shown.decode("ascii")  # Nearly always. The decoder is written in Python.
        else:
            text = self._utf8.decode(shown)
            self.unfinished = bool(self._utf8.getstate()[0])
        return self._begin(text) if self._at_start else text

    def finish(self) -> str:
        self.unfinished = False
        return self._utf8.decode(b"", final=True)

    def cut(self) -> str:
        return ""

    def _begin(self, text: str) -> str:
        if not text:
            return text
        if self._token_bytes.bare_first:
            self._at_start = False
            return text.replace(" ", "")
        bare = text.lstrip(" ")
        dropped = min(len(text) - len(bare), self._drop_spaces)
        self._drop_spaces -= dropped
        self._at_start = dropped == len(text) and self._drop_spaces > 0
        return text[dropped:]


class WindowDecoder:
    """Decodes the last few tokens twice, without and with the newest, and gives out the difference.

    For tokenisers whose text depends on neighbouring tokens. Correct where text depends on the token before and no
    earlier ones, which holds for every decoder of the `tokenizers` library.
    """

    __slots__ = ("_given", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0
        """How many tokens of the window have been given out as text."""

    @property
    def unfinished(self) -> bool:
        return len(self._window) > self._given and bool(self._new_text())

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._new_text()
        waiting = len(self._window) - self._given
        if not text or (text.endswith(_REPLACEMENT) and waiting < _LONGEST_CHARACTER):
            return ""
        del self._window[: self._given]
        self._given = len(self._window)
        return text

    def finish(self) -> str:
        return self._new_text()

    def cut(self) -> str:
        return self._new_text().rstrip(_REPLACEMENT)

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._window[: self._given], skip_special_tokens=True)
        return self._tokenizer.decode(self._window, skip_special_tokens=True)[len(before) :]
