"""Statistical machine translation, as it was before neural networks. See docs/systems/statistical.md.

from s2sjax import statistical
translator = statistical.PhraseTranslator.train([("das Haus", "the house"), ("ein Haus", "a house")])
translator.translate(["das Haus"])                      ["the house"]
translator.tune(dev_sources, dev_references)            the same translator, with weights tuned for BLEU

dictionary.py     word for word, as in the 1950s
fertility.py      n(phi | x): how many words a word becomes
ngrams.py         the language model p(y): modified Kneser-Ney
phrases.py        phrase pairs from word alignments, with their probabilities
decoder.py        the stack decoder
tuning.py         weights that maximize BLEU on n-best lists
translator.py     all of it together
"""

from s2sjax.statistical.decoder import Hypothesis, Search, Weights
from s2sjax.statistical.dictionary import Dictionary
from s2sjax.statistical.ngrams import NGrams, estimate
from s2sjax.statistical.phrases import PhraseTable
from s2sjax.statistical.translator import PhraseTranslator

__all__ = [
    "Dictionary", "Hypothesis", "NGrams", "PhraseTable", "PhraseTranslator", "Search", "Weights", "estimate",
]  # fmt: skip
