"""A model's control tokens, and how a prompt is made in which nobody but its template writes one.

Knows which tokens steer a model and how the `tokenizers` library finds them in a text. Knows nothing of messages, and
of templates only which parts of a text are theirs.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from tokenizers import AddedToken, Encoding, Tokenizer

from actors.chat_template import PromptRefused, Skeleton

_PIECES_AT_ONCE = 4_096
"""Making and dropping what the library returns for a piece holds the interpreter lock."""
_MOST_CUTS = 64
"""Each halves what is left of the longest control token."""


class ControlTokens:
    """Every token that was added to a vocabulary by name, flagged special or not, except those of blanks alone.

    A prompt is read twice: as it is, and as its template's own text, with stand-ins for all that clients say. Where
    both have the same control tokens, clients have written none. Else the template's own text says where control tokens
    are, and what stands between them is read by a tokeniser that finds none: whatever a client has put together, of how
    many messages and of whatever text of the template's, and whatever it is normalised to.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        controls = {number: token for number, token in added.items() if token.content.strip()}
        self._tokenizer = tokenizer
        self._innocent = _without(tokenizer, controls)
        self._numbers = frozenset(controls) - _unknown(tokenizer)
        self._can_be_undone = _can_be_undone(tokenizer, list(controls.values()), list(added.values()))
        # Who asks for little asks for the same roles again and again.
        self._expected = lru_cache(maxsize=1_024)(self._written)

    def tokens(self, text: str, skeleton: Skeleton, *, special: bool) -> list[int]:
        """The tokens of `text`, which a template has made of what `skeleton` says. `special`: with the tokens that the
        tokeniser puts at either end of a text. Raises `PromptRefused`."""
        tokens = _encoded(self._tokenizer, [text], special)
        if not self._can_be_undone and self._among(tokens) == self._of_template(skeleton, special):
            return tokens
        return self._guarded(skeleton, special)

    def _of_template(self, skeleton: Skeleton, special: bool) -> tuple[int, ...]:
        return (self._expected if len(skeleton.text) <= 4_096 else self._written)(skeleton.text, special)

    def _written(self, text: str, special: bool) -> tuple[int, ...]:
        return self._among(_encoded(self._tokenizer, [text], special))

    def _among(self, tokens: Iterable[int]) -> tuple[int, ...]:
        return tuple(token for token in tokens if token in self._numbers)

    def _guarded(self, skeleton: Skeleton, special: bool) -> list[int]:
        encoding = _located(self._tokenizer, [skeleton.text])[0]
        ids = encoding.ids
        found = [(token, encoding.token_to_chars(n)) for n, token in enumerate(ids) if token in self._numbers]
        places = [(token, *place) for token, place in found if place is not None]
        ends = [0, *[end for _, _, end in places]]
        beginnings = [*[start for _, start, _ in places], len(skeleton.text)]
        stretches = [skeleton.filled(end, start) for end, start in zip(ends, beginnings, strict=True)]
        innocent = self._all_innocent(stretches)
        tokens = innocent[0]
        for (control, _, _), stretch in zip(places, innocent[1:], strict=True):
            tokens += [control, *stretch]
        if not special:
            return tokens
        before, after = self._ends(skeleton.text, ids)
        return [*before, *tokens, *after]

    def _ends(self, text: str, bare: Sequence[int]) -> tuple[list[int], list[int]]:
        whole = _encoded(self._tokenizer, [text], True)
        first = next((n for n in range(len(whole) - len(bare) + 1) if whole[n : n + len(bare)] == bare), 0)
        return whole[:first], whole[first + len(bare) :]

    def _all_innocent(self, stretches: list[str]) -> list[list[int]]:
        tokens: list[list[int]] = []
        for first in range(0, len(stretches), _PIECES_AT_ONCE):
            some = stretches[first : first + _PIECES_AT_ONCE]
            for stretch, encoding in zip(some, _encodings(self._innocent, some, False), strict=True):
                ids = encoding.ids
                tokens.append(ids if self._numbers.isdisjoint(ids) else self._cut(stretch))
        return tokens

    def _cut(self, stretch: str) -> list[int]:
        """Of a text whose pieces happen to spell a control token without its having been looked for."""
        pieces = [stretch]
        for _ in range(_MOST_CUTS):
            encodings = _located(self._innocent, pieces)
            cuts = [
                [
                    sum(encoding.token_to_chars(n) or (0, 0)) // 2
                    for n, t in enumerate(encoding.ids)
                    if t in self._numbers
                ]
                for encoding in encodings
            ]
            if not any(cuts):
                return [token for encoding in encodings for token in encoding.ids]
            pieces = [
                piece[start:end]
                for piece, at in zip(pieces, cuts, strict=True)
                for start, end in pairwise([0, *at, len(piece)])
                if start < end
            ]
        raise PromptRefused(
            "The input spells a control token of this model, and cannot be read otherwise. Leave it out."
        )


def _encoded(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[int]:
    return [token for encoding in _encodings(tokenizer, texts, special) for token in encoding.ids]


def _encodings(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[Encoding]:
    # `encode` would hold the interpreter lock all the time; this lets it go.
    return tokenizer.encode_batch_fast(texts, add_special_tokens=special)


def _located(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """These know, of each token, where in its text it stands."""
    return tokenizer.encode_batch(texts, add_special_tokens=False)


def _without(tokenizer: Tokenizer, controls: dict[int, AddedToken]) -> Tokenizer:
    """The same, blind to these: the library can leave special tokens unseen, whoever they were special to."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["id"] in controls
    innocent = Tokenizer.from_str(json.dumps(state))
    innocent.encode_special_tokens = True
    return innocent


def _unknown(tokenizer: Tokenizer) -> frozenset[int]:
    """The token for whatever the vocabulary lacks, where it lacks anything: any text may then be made of it."""
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token")
    if unknown is None and model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    if unknown is None or model.get("byte_fallback"):
        return frozenset()
    number = tokenizer.token_to_id(unknown)
    return frozenset() if number is None else frozenset({number})


def _can_be_undone(tokenizer: Tokenizer, controls: list[AddedToken], added: list[AddedToken]) -> bool:
    """Whether a text beside a control token can keep it from being found. Then one that is written elsewhere in its
    stead would leave their number as it was."""
    if any(token.single_word or token.content != token.content.strip() for token in controls):
        return True
    if tokenizer.normalizer is not None and any(token.normalized for token in controls):
        return True
    contents = {token.content for token in controls}
    beginnings = {content[:length] for content in contents for length in range(1, len(content) + 1)}
    for token in added:
        text, size = token.content, len(token.content)
        if any(text[n:] in beginnings for n in range(1, size)):
            return True
        if any(text[n:end] in contents for n in range(size) for end in range(n + 1, size + 1) if end - n < size):
            return True
    return False
