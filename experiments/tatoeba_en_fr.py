"""English to French sentences of Tatoeba: experiments/tatoeba_en_de.py with another language.

Command   s2sjax train experiments/tatoeba_en_fr.py
Data      s2sjax data get tatoeba: fra.train.tsv, 160,467 pairs, of which 2% of the sources are used to choose the
          checkpoint; fra.dev.tsv, 3,063 pairs, is scored at the end as `test`, each with its one translation
Hardware  one H200, shared with up to ten other training runs; 851 s, 19,637,760 weights
Score     BLEU 49.31, chrF2 66.46 (seed 0)
"""

from pathlib import Path

from s2sjax.config import TextFiles, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("tatoeba_en_de.py")))
corpus = TextFiles(("data:tatoeba/fra.train.tsv",), test=("data:tatoeba/fra.dev.tsv",), dev_percent=2)
experiment = replace(
    base,
    name="tatoeba_en_fr",
    data=replace(base.data, corpus=corpus),
    show=("Where is the train station?", "I would like to learn French."),
)
