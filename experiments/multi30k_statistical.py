"""English to German descriptions of pictures by statistical translation: what came before neural networks.

Papers    Brown et al. 1993; Koehn, Och and Marcu 2003; Chen and Goodman 1999; Och 2003
Command   python experiments/multi30k_statistical.py
Data      that of experiments/multi30k.py; weights are tuned on the first 500 sentences of val, test is scored once
Hardware  one core of a shared x86 machine; 53 s to learn, 7 and 27 minutes to tune, 36 to 75 s for 1,000 sentences

Words are taken as they are: there are no subwords. docs/systems/statistical.md shows the scores and explains them.
"""

from __future__ import annotations

import time
from dataclasses import replace

import s2sjax
from s2sjax import align
from s2sjax.evaluate import metrics
from s2sjax.statistical import Dictionary, PhraseTranslator, decoder

TUNED_ON = 500


def read(split: str) -> list[tuple[str, str]]:
    files = (s2sjax.data_path(f"multi30k/tok/{split}.lc.norm.tok.{language}") for language in ("en", "de"))
    return list(zip(*(file.read_text("utf-8").splitlines() for file in files), strict=True))


def main() -> None:
    train, val, test = map(read, ("train", "val", "test_2016_flickr"))
    began = time.perf_counter()
    aligned = align.fit(train, report=print)
    words = PhraseTranslator.train(train, longest=1, aligned=aligned, report=print)
    phrases = PhraseTranslator.train(train, aligned=aligned, report=print)
    print(f"perplexity of the language model on val: {phrases.language.perplexity(y for _, y in val):.1f}")
    print(f"learned in {time.perf_counter() - began:.0f} s")
    tune = lambda translator: translator.tune(*zip(*val[:TUNED_ON]), report=print)
    systems = {
        "dictionary": lambda: Dictionary.learn(train),
        "dictionary without silent words": lambda: Dictionary.learn(train, "hmm", silent=True),
        "words, noisy channel": lambda: replace(words, weights=decoder.NOISY_CHANNEL),
        "words, tuned": lambda: tune(words),
        "phrases, noisy channel": lambda: replace(phrases, weights=decoder.NOISY_CHANNEL),
        "phrases": lambda: phrases,
        "phrases, tuned": lambda: tune(phrases),
    }
    for name, make in systems.items():
        began = time.perf_counter()
        translator = make()
        learned = time.perf_counter() - began
        outputs = translator.translate([source for source, _ in test])
        seconds = time.perf_counter() - began - learned
        found = metrics.score(["bleu_tokenized"], outputs, [(target,) for _, target in test])["bleu_tokenized"]
        print(f"{name:32} {found}  {learned:.0f} s + {seconds:.1f} s  {found.signature}", flush=True)
        print(*outputs[:3], getattr(translator, "weights", ""), sep="\n")


if __name__ == "__main__":
    main()
