"""Parts of speech of English web text (UD English EWT, Silveira et al. 2014), without pre-training: words and their
characters, a bidirectional LSTM, a dense layer (Ling et al. 2015; Plank et al. 2016).

Command   s2sjax train experiments/ud_pos.py
Data      data/ud_ewt/{train,dev}.tsv: words, a tab, universal tags (12,544 and 2,001 sentences)
Score     not measured yet
"""

from s2sjax.config import Luong, TagData, TaggedFiles, TaggerModel, Train
from s2sjax.tasks import Tagging

UD = TaggedFiles(
    train="../data/ud_ewt/train.tsv",
    dev="../data/ud_ewt/dev.tsv",
    origin="UD English EWT (Silveira et al. 2014): the words of each sentence, and their universal tags",
)

experiment = Tagging(
    name="ud-pos",
    data=TagData(UD, tokens=1024),
    model=TaggerModel(
        Luong(width=400, embedding=228, layers=2, bidirectional=True, dropout=0.4),
        spelling_width=100,
        word_dropout=0.1,
    ),
    train=Train(steps=6000, learning_rate=2e-3, warmup=200, log_every=100, evaluate_every=500, save_every=500),
)
