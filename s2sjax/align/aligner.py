"""Unsupervised word alignment of sentence pairs, in both directions.

    aligned = fit([("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")], model="ibm1")
    aligned.links("intersection")[0]            {(0, 0), (1, 1)}
    aligned.forward.probability("Haus", "house")

Model 2 and the HMM start from the translation table of Model 1, so that they take twice as many iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.align import bitext, ibm_models
from s2sjax.align.bitext import Bitext, Direction, Sentence
from s2sjax.align.ibm_models import Positions, Posteriors, Table
from s2sjax.align.symmetrize import METHODS, Link
from s2sjax.errors import UserError

MODELS: dict[str, Callable[[Direction], Positions]] = {
    "ibm1": lambda direction: ibm_models.Uniform(),
    "ibm2": lambda direction: ibm_models.Absolute.uniform(direction.groups),
    "hmm": lambda direction: ibm_models.Jumps.uniform(direction.groups),
}
DIRECTIONS = ("forward", "reverse")


class OneWay(NamedTuple):
    """A trained direction. Forward: each target word has at most one source word; reverse: the other way round."""

    text: Bitext
    table: Table
    positions: Positions
    choice: np.ndarray  # the generating word of each generated word of the text, -1 for the null word
    is_reverse: bool
    perplexities: list[float]
    """perplexities of the generated words before each iteration of the last model"""

    def links(self, number: int) -> set[Link]:
        """The links (source word, target word) of sentence pair `number`."""
        generated = self.text.sources if self.is_reverse else self.text.targets
        start = generated.starts[number]
        choice = self.choice[start : start + generated.lengths[number]].tolist()
        return {(j, i) if self.is_reverse else (i, j) for j, i in enumerate(choice) if i >= 0}

    def probability(self, source: str, target: str) -> float:
        """t(target | source), or in reverse t(source | target); 0 if no sentence pair contains both words."""
        text = self.text
        if source not in text.sources.types or target not in text.targets.types:
            return 0.0
        number = text.sources.types.index(source), text.targets.types.index(target)
        found = np.flatnonzero((text.pairs[0] == number[0]) & (text.pairs[1] == number[1]))
        return float(self.table.pair[found[0]]) if len(found) else 0.0


class Given(NamedTuple):
    """A direction with given links, such as those of attention."""

    found: Sequence[set[Link]]

    def links(self, number: int) -> set[Link]:
        return self.found[number]


class Aligned(NamedTuple):
    """Sentence pairs with their alignments in one or both directions."""

    forward: OneWay | Given | None
    reverse: OneWay | Given | None
    size: int
    """number of pairs"""

    @property
    def methods(self) -> list[str]:
        """The methods that `links` accepts."""
        there = [name for name in DIRECTIONS if getattr(self, name)]
        return [*there, *METHODS] if len(there) == 2 else there

    @property
    def default(self) -> str:
        return self.methods[-1]

    def links(self, method: str | None = None) -> list[set[Link]]:
        """The links of each sentence pair. `method`: "forward", "reverse", or one of symmetrize.py."""
        return [self.links_of(number, method or self.default) for number in range(self.size)]

    def links_of(self, number: int, method: str) -> set[Link]:
        if method not in self.methods:
            raise UserError(f"there is no method {method!r}: choose one of {', '.join(self.methods)}")
        if method in DIRECTIONS:
            return getattr(self, method).links(number)
        return METHODS[method](self.forward.links(number), self.reverse.links(number))  # type: ignore[union-attr]


def given(forward: Sequence[set[Link]] | None, reverse: Sequence[set[Link]] | None) -> Aligned:
    """Wraps known links (source word, target word) of each pair, in one or both directions."""
    side = lambda links: None if links is None else Given(links)
    return Aligned(side(forward), side(reverse), len(forward or reverse or ()))


def fit(
    pairs: Iterable[tuple[Sentence, Sentence]], model: str = "hmm", iterations: int = 5, agree: bool = True,
    report: Callable[[str], None] = lambda line: None,
) -> Aligned:  # fmt: skip
    """Aligns the words of (source, target) pairs. Calls `report` with a line for each iteration.

    agree: whether the directions learn from each other (ibm_models.agree), which improves both; else each is plain EM.

    A sentence is a string, split at blanks, or a list of words. A pair with an empty side has no links. All sentences
    to align must be among the pairs, because unseen word pairs have probability 0.
    """
    if model not in MODELS:
        raise UserError(f"there is no model {model!r}: choose one of {', '.join(MODELS)}")
    if iterations < 1:
        raise UserError(f"iterations is {iterations}: it must be at least 1")
    text = bitext.build(pairs)
    _describe(text, model, report)
    if not len(text.cells):
        raise UserError("no sentence pair has words on both sides: there is nothing to learn from")
    directions = [bitext.direction(text, is_reverse) for is_reverse in (False, True)]
    tables: Sequence[Table] = [ibm_models.uniform_table(d) for d in directions]
    for stage in dict.fromkeys(("ibm1", model)):
        positions: Sequence[Positions] = [MODELS[stage](d) for d in directions]
        history = []
        for iteration in range(1, iterations + 1):
            log_likelihoods, tables, positions = _step(directions, tables, positions, agree)
            history.append([float(np.exp(-x / len(d.words))) for x, d in zip(log_likelihoods, directions)])
            forward, reverse = history[-1]
            report(f"{stage} {iteration}/{iterations}  perplexity {forward:.2f} forward, {reverse:.2f} reverse")
    choices = map(ibm_models.viterbi, directions, tables, positions)
    one, other = map(OneWay, (text, text), tables, positions, choices, (False, True), map(list, zip(*history)))
    return Aligned(one, other, text.size)


def _describe(text: Bitext, model: str, report: Callable[[str], None]) -> None:
    """Reports the size of the text, and the pairs that are too long for the HMM."""
    words = f"{len(text.sources.ids):,} and {len(text.targets.ids):,} words"
    report(f"{text.size:,} sentence pairs, {words}, {len(text.pairs[0]):,} distinct word pairs")
    longest = np.maximum(text.sources.lengths, text.targets.lengths)
    long = np.count_nonzero(longest > ibm_models.LONGEST)
    if model == "hmm" and long:
        report(
            f"{long:,} {'pair has' if long == 1 else 'pairs have'} more than {ibm_models.LONGEST} words on a side, too "
            "many for the HMM: Model 1 aligns them; split them into sentences for better links"
        )


def _step(
    directions: Sequence[Direction], tables: Sequence[Table], positions: Sequence[Positions], agree: bool
) -> tuple[Sequence[float], Sequence[Table], Sequence[Positions]]:
    """Runs an iteration in both directions. Returns the log-likelihoods before, and the tables and positions after."""
    found: Iterable[Posteriors] = map(ibm_models.expect, directions, tables, positions)  # lazy, to save memory
    if agree:
        forward, reverse = found
        found = ibm_models.agree(directions[0], directions[1], forward, reverse)
    steps = [(one.log_likelihood, *ibm_models.maximize(d, one, p)) for d, one, p in zip(directions, found, positions)]
    return tuple(zip(*steps))  # type: ignore[return-value]
