"""Random subword segmentation, which shows a model many segmentations of a text: pure functions of a random.Random.

SentencePiece can sample too, but its random generator is per thread and cannot be reset, so that batches would not be
reproducible. This module uses the pieces of its model with its own generator; without randomness, both agree.

A text is split into words, each beginning with U+2581 (the space before it), because no piece spans two words.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from s2sjax.core.special_tokens import UNK

SPACE = "\u2581"
WORD = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
UNKNOWN_PENALTY = 10.0  # as in SentencePiece: an unknown character scores this much less than the worst piece
LONGEST_CACHED = 20  # characters; longer words, such as lines of a language without spaces, hardly recur

Symbols = tuple[str, ...]
Segment = Callable[[str, random.Random], Sequence[str]]
Draw = Callable[[str, random.Random], list[int]]
Pieces = Mapping[str, tuple[int, float]]
"""piece -> (id, score): a unigram's log-probability, or minus the rank of its merge"""


def encode(text: str, pieces: Pieces, segment: Segment, rng: random.Random) -> list[int]:
    """Encodes `text`, each word split by `segment`; a run of unknown characters is one <unk>."""
    if not text:
        return []
    ids: list[int] = []
    for word in WORD.findall(SPACE + text.replace(" ", SPACE)):
        for piece in segment(word, rng):
            index = pieces[piece][0] if piece in pieces else UNK
            if index != UNK or ids[-1:] != [UNK]:
                ids.append(index)
    return ids


def bpe_dropout(pieces: Pieces, dropout: float) -> Segment:
    """Byte-pair encoding in which each merge is dropped with probability `dropout` (Provilkov et al. 2020).

    Applies the best merge of two neighbours until none is left. Before each merge, every possible merge is dropped
    independently; if all are dropped, the word is done. Dropout 0 is plain BPE, dropout 1 gives characters.
    """
    rate = math.log1p(-dropout) if dropout < 1 else -math.inf

    def path(symbols: Symbols, merges: float = math.inf) -> list[tuple[Symbols, list[int]]]:
        """The states of a word while its best merge is applied repeatedly, up to `merges` times.

        Each has the places of all possible merges, the best first; ties are broken from left to right.
        """
        steps: list[tuple[Symbols, list[int]]] = []
        while True:
            joined = [*map(str.__add__, symbols, symbols[1:])]
            scored = sorted([(-pieces[piece][1], n) for n, piece in enumerate(joined) if piece in pieces])
            places = [n for _, n in scored]
            steps.append((symbols, places))
            if not places or len(steps) > merges:
                return steps
            symbols = merged(symbols, places[0])

    cached = lru_cache(maxsize=1 << 16)(path)

    def segment(word: str, rng: random.Random) -> Symbols:
        symbols: Symbols = tuple(word)
        while True:
            # The number of consecutive best merges that are kept is geometric: draw it at once, not one by one.
            kept = math.log(1 - rng.random()) / rate if rate else math.inf
            steps = cached(symbols) if len(word) <= LONGEST_CACHED else path(symbols, kept)
            symbols, places = steps[int(min(kept, len(steps) - 1))]
            # The best merge is dropped. Apply the next one that is kept; the fate of later ones does not matter.
            for place in places[1:]:
                if rng.random() >= dropout:
                    symbols = merged(symbols, place)
                    break
            else:
                return symbols

    return segment


def merged(symbols: Symbols, place: int) -> Symbols:
    """Joins the symbol at `place` with the next one."""
    return (*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :])


def unigram_sampling(pieces: Pieces, alpha: float) -> Segment:
    """Draws a segmentation x of a word with probability proportional to p(x)^alpha (Kudo 2018, with l = infinity).

    Forward filtering, backward sampling: forward[i] = log of the sum over all segmentations of the first i characters.
    A larger alpha favours the best segmentation, a smaller one makes them more uniform.
    """
    longest = max(map(len, pieces))
    unknown = min(score for _, score in pieces.values()) - UNKNOWN_PENALTY

    def score(piece: str) -> float | None:
        if piece in pieces:
            return alpha * pieces[piece][1]
        return alpha * unknown if len(piece) == 1 else None

    @lru_cache(maxsize=1 << 16)  # most words of a text have been seen before
    def lattice(word: str) -> list[list[tuple[float, int]]]:
        """For each end, the (cumulative probability, start) of all pieces that end there."""
        forward, ways = [0.0], []
        for end in range(1, len(word) + 1):
            starts = range(max(0, end - longest), end)
            scored = [(forward[start] + s, start) for start in starts if (s := score(word[start:end])) is not None]
            top = max(scored)[0]
            total = sum(math.exp(s - top) for s, _ in scored)
            forward.append(top + math.log(total))
            cumulative = accumulate(math.exp(s - top) / total for s, _ in scored)
            ways.append([(below, start) for below, (_, start) in zip(cumulative, scored)])
        return ways

    def segment(word: str, rng: random.Random) -> list[str]:
        ways, end, drawn = lattice(word), len(word), []
        while end:
            number = rng.random()
            start = next((start for below, start in ways[end - 1] if number < below), ways[end - 1][-1][1])
            drawn.append(word[start:end])
            end = start
        return drawn[::-1]

    return segment
