"""English to German descriptions of pictures: experiments/multi30k.py on the raw text, with upper-case letters.

Command   s2sjax train experiments/multi30k_raw.py
Data      s2sjax data get multi30k: raw/
Hardware  one H200, shared with up to eleven other training runs; 350 to 759 s, 26,150,912 weights
Score     BLEU 41.26, 40.75 and 41.97, chrF2 65.28, 65.07 and 65.78 on test 2016 (seeds 0, 1 and 2)
"""

from pathlib import Path

from s2sjax.config import TextFiles, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
pair = lambda split: tuple(f"data:multi30k/raw/{split}.{language}" for language in ("en", "de"))
experiment = replace(
    base,
    name="multi30k_raw",
    data=replace(base.data, corpus=TextFiles(pair("train"), pair("val"), pair("test_2016_flickr"))),
    train=replace(base.train, steps=8000, ema=0.998),
    evaluate=replace(base.evaluate, metrics=("bleu", "chrf")),
    show=("A man is riding a bicycle down the street.",),
)
