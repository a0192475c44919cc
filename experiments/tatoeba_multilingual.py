"""English to German and to French by one model; a tag before the source selects the language.

Paper     Johnson et al. 2017, "Google's multilingual neural machine translation system"
Command   s2sjax train experiments/tatoeba_multilingual.py
          echo 'Where is the train station?' | s2sjax decode runs/tatoeba_multilingual --tag '<2de>'
Data      those of tatoeba_en_de.py and tatoeba_en_fr.py; no English sentence is in the training part of one and the
          scored part of the other
Hardware  one H200, shared with up to ten other training runs; 997 s, 19,637,760 weights
Score     to German BLEU 45.41, chrF2 63.90; to French BLEU 49.03, chrF2 66.30 (seed 0). Nothing was tuned
"""

from pathlib import Path

from s2sjax.config import Mixture, replace
from s2sjax.runs.experiment_file import load_experiment

german, french = (
    load_experiment(str(Path(__file__).with_name(f"tatoeba_en_{language}.py"))) for language in ("de", "fr")
)
experiment = replace(
    german,
    name="tatoeba_multilingual",
    data=replace(german.data, corpus=Mixture((german.data.corpus, french.data.corpus), tags=("<2de>", "<2fr>"))),
    train=replace(german.train, steps=20_000),
    show=("<2de> Where is the train station?", "<2fr> Where is the train station?"),
)
