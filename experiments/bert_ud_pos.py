"""Parts of speech as in ud_pos.py, by the encoder of bert_ddtp.py, without characters.

Paper     Devlin et al. 2019, section 5.3
Command   s2sjax train experiments/bert_ud_pos.py --init runs/bert_ddtp --init-assets
          without --init and --init-assets: the same model from scratch; --data.corpus.train_percent 10 uses a tenth of
          the sentences. A word that is one subword of BERT's vocabulary starts with its vector, even if no training
          sentence has it.
Data      s2sjax data get ud_ewt: train.tsv, of which 4% are used to choose the checkpoint, and dev.tsv, which is scored
          at the end as `test`
Hardware  one H200, shared with other training runs
Score     accuracy with 1%, 10% and 100% of the labels, seed 0: 78.21%, 87.00% and 91.29% from BERT; 68.51%, 80.77%
          and 88.45% from scratch
"""

from pathlib import Path

from s2sjax.config import Spelling, Train, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks import Tagging
from s2sjax.tasks.tagging import TagData, TaggerModel

here = Path(__file__)
base, tags = (load_experiment(str(here.with_name(name))) for name in ("bert_ddtp.py", "ud_pos.py"))
experiment = Tagging(
    name="bert_ud_pos",
    data=TagData(tags.data.corpus, min_count=1, batch_tokens=2048),
    model=TaggerModel(
        replace(base.model.encoder, dropout=0.2), Spelling(on=False), initial=1.0, word_dropout=0.1, dropout=0.1
    ),
    train=Train(
        steps=2000, learning_rate=3e-4, warmup_steps=200, weight_decay=0.01, evaluate_every=250, save_every=250
    ),
)
