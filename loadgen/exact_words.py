"""Prompts of an exact number of words, each of which is a single token in the usual vocabularies.

Knows short English words that byte-pair vocabularies learn first, with a space before them or without. Knows no
tokeniser: whether a word is a token, and how many a chat template adds, is found out from a server's own counts
(`warm_up.count_words`).
"""

import random

WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city name president team minute idea kid body information back
    parent face others level office door health person art war history party result change reason research girl
    moment air teacher force education able about above act action add after again against age ago all almost alone
    along already also always among amount animal answer any apply arm around ask away baby bad ball bank base beat
    because bed before begin best better between big bird black blood blue board boat bone born both bottom bought
    box boy bread break broken brother brown build burn buy call came can cat catch cause center certain charge
    check children choose church circle class clean clear close cloud coat cold color come common complete control
    cook cool copy corn correct cost could count cover cross cup current cut dark daughter dead deal death deep
    degree did direct divide doctor does dog dollar done double down draw dream drive drop dry during each ear early
    earth east eat edge effect egg eight either else engine enough enter equal even event
    """.split()  # noqa: SIM905  (a line a word would be a page)
)

_DIGITS = 3
"""Words that write a number: 240 ** 3 is 13.8 million."""
FEWEST = 2 * _DIGITS


def exact(seed: int, index: int, words: int) -> str:
    """So many words, though never fewer than `FEWEST`: always the same text for the same three arguments.

    Two prompts of different `index` differ within their first three words, two of different `seed` within six (as long
    as the numbers are below 13 million).
    """
    draw = random.Random(f"exact {seed}/{index}")
    opening = [*_written(index), *_written(seed)]
    return " ".join([*opening, *(WORDS[int(draw.random() * len(WORDS))] for _ in range(words - FEWEST))])


def _written(number: int) -> list[str]:
    """A number, in words for digits."""
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(WORDS))
        digits.append(WORDS[digit])
    return digits
