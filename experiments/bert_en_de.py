"""English to German descriptions of software packages; the encoder may start from bert_ddtp.py.

Paper     Devlin et al. 2019 for the encoder; Vaswani et al. 2017 for the model
Command   s2sjax train experiments/bert_en_de.py --init runs/bert_ddtp --init-assets
          without --init and --init-assets: the same model from scratch
Data      data:ddtp, en-de.train.tsv.gz, en-de.dev.tsv.gz: 18,843 and 383 pairs of paragraphs. Sources are read in lower
          case, as BERT reads them.
Hardware  one H200, shared with other training runs; 390 s, 11,469,824 weights
Score     BLEU 27.56, chrF2 57.86 from BERT; 21.93 and 52.71 from scratch; beam 4, seed 0
          (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0; dev was also used to choose the checkpoints)
"""

from pathlib import Path

from s2sjax.config import Data, Evaluate, Search, Text, TextFiles, Train, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks import Translation

base = load_experiment(str(Path(__file__).with_name("bert_ddtp.py")))
folder = "data:ddtp"
experiment = Translation(
    name="bert_en_de",
    data=Data(
        TextFiles(train=(f"{folder}/en-de.train.tsv.gz",), dev=(f"{folder}/en-de.dev.tsv.gz",)),
        source=base.data.text,
        target=Text("subwords", size=8000),
        buckets=((32, 40), (64, 80), (128, 160)),
        batch_tokens=16_384,
    ),
    model=replace(base.model.encoder, dropout=0.3),
    train=Train(
        steps=6000, learning_rate=7e-4, warmup_steps=600, label_smoothing=0.1, dtype="bfloat16",
        log_every=200, evaluate_every=1000, save_every=1000,
    ),
    search=Search(beam_size=4),
    evaluate=Evaluate(metrics=("bleu", "chrf")),
)  # fmt: skip
