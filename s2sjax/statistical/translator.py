"""A phrase-based translator: alignment, phrase table and language model, learned from sentence pairs.

translator = PhraseTranslator.train(pairs, report=print)
tuned = translator.tune(dev_sources, dev_references, report=print)
tuned.translate(["ein Mann liest ."])
tuned.nbest("ein Mann liest .", 5)            Hypotheses with scores, features and phrases
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from s2sjax import align
from s2sjax.align.bitext import Sentence
from s2sjax.errors import UserError
from s2sjax.statistical import decoder, ngrams, tuning
from s2sjax.statistical.decoder import Hypothesis, Search, Weights
from s2sjax.statistical.phrases import PhraseTable, Words

Report = Callable[[str], None]
silently: Report = lambda line: None


@dataclass(frozen=True)
class PhraseTranslator:
    """Translates the words of `str.split`. A word that was never seen is copied."""

    table: PhraseTable
    language: ngrams.NGrams
    weights: Weights = decoder.WEIGHTS
    search: Search = decoder.SEARCH

    @classmethod
    def train(
        cls, pairs: Iterable[tuple[Sentence, Sentence]], longest: int = 7, order: int = 4,
        aligned: align.Aligned | None = None, method: str | None = None, report: Report = silently,
    ) -> PhraseTranslator:  # fmt: skip
        """Learns from (source, target) pairs.

        longest: maximum number of words of a phrase; 1 translates word by word, in any order.
        order: of the language model of the targets.
        aligned: the alignment of these pairs; by default, that of the HMM (s2sjax.align.fit).
        method: how the two directions are joined; by default, grow-diag-final-and.
        """
        pairs = [(split(source), split(target)) for source, target in pairs]
        aligned = aligned or align.fit(pairs, report=report)
        if aligned.size != len(pairs):
            raise UserError(f"aligned has {aligned.size:,} pairs, but there are {len(pairs):,}: align the same pairs")
        sources, targets = zip(*pairs)
        table = PhraseTable(sources, targets, aligned.links(method), longest)
        report(f"{len(table):,} source phrases of up to {longest} words")
        language = ngrams.estimate((target for target in targets if target), order)
        report(f"{len(language.log_probs):,} n-grams of up to {order} words")
        return cls(table, language)

    def nbest(self, line: Sentence, n: int = 10) -> list[Hypothesis]:
        """The n best translations of a line, with their scores, features and phrases."""
        return decoder.decode(
            split(line), self.table.lookup, self.table.longest, self.language, self.weights, self.search, n
        )

    def translate(self, lines: Iterable[Sentence]) -> list[str]:
        """Translates each line. A line without words stays empty."""
        return [" ".join(self.nbest(line, 1)[0].words) for line in lines]

    def tune(
        self, sources: Sequence[Sentence], references: Sequence[Sentence], rounds: int = 5, n: int = 100,
        report: Report = silently,
    ) -> PhraseTranslator:  # fmt: skip
        """The same translator with the weights that have the best BLEU on these sentences (tuning.py).

        rounds: how often the n-best lists are extended by those of the new weights.
        """
        if len(sources) != len(references):
            raise UserError(f"{len(sources):,} sources but {len(references):,} references: give one for each")
        if not len(sources):
            raise UserError("there are no sentences to tune the weights on")
        best, best_bleu, now = self, -1.0, self
        answers = [split(reference) for reference in references]
        lists: list[dict[tuple, np.ndarray]] = [{} for _ in sources]  # {features: statistics}
        for number in range(1, rounds + 1):
            before = sum(map(len, lists))
            outputs = [now.nbest(source, n) for source in sources]
            for one, found, answer in zip(lists, outputs, answers):
                one.update({tuple(np.round(h.features, 6)): tuning.statistics(h.words, answer) for h in found})
            value = float(tuning.bleu(sum(tuning.statistics(f[0].words, a) for f, a in zip(outputs, answers))))  # type: ignore[arg-type]
            report(f"tune {number}/{rounds}  BLEU {value:.2f}")
            if value > best_bleu:
                best, best_bleu = now, value
            if number == rounds or sum(map(len, lists)) == before:
                break
            arrays = [tuning.NBest(np.array(list(one)), np.array(list(one.values()))) for one in lists]
            weights, _ = tuning.maximize(arrays, np.array(now.weights), seed=number)
            now = replace(self, weights=Weights(*weights.tolist()))
        return best


def split(sentence: Sentence) -> Words:
    return tuple(sentence.split() if isinstance(sentence, str) else sentence)
