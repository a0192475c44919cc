"""Parts of speech of English web text, without pre-training: words and characters, a bidirectional LSTM, a dense layer.

Papers    Ling et al. 2015, "Finding function in form"; Plank, Søgaard and Goldberg 2016; data: UD English EWT
          (Silveira et al. 2014), 17 universal tags
Command   s2sjax train experiments/ud_pos.py
Data      s2sjax data get ud_ewt: train.tsv, of which 4% are used to choose the checkpoint, and dev.tsv, the official
          dev part, which is scored at the end as `test`
Hardware  one H200, shared with six other training runs; 277 s, 2,786,789 weights
Score     accuracy 95.22% on the official dev part (25,147 words), seed 0; if padding counted as right: 99.20%
"""

from s2sjax.config import Luong, Train
from s2sjax.tasks import Tagging
from s2sjax.tasks.tagging import TagData, TaggedFiles, TaggerModel

experiment = Tagging(
    name="ud-pos",
    data=TagData(
        TaggedFiles(
            "data:ud_ewt", test="dev.tsv", dev_percent=4.0, origin="UD English EWT v2.16 (Silveira et al. 2014)"
        ),
        batch_tokens=1024,
    ),
    model=TaggerModel(
        Luong(width=400, embedding_size=228, layers=2, bidirectional=True, dropout=0.4),
        spelling_width=100,
        word_dropout=0.1,
    ),
    train=Train(steps=6000, learning_rate=2e-3, warmup_steps=200, log_every=100, evaluate_every=500, save_every=500),
)
