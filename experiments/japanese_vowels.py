"""Nine speakers of the vowel /ae/, from 12 cepstrum coefficients per frame (Japanese Vowels, Kudo et al. 1999).

Command   s2sjax train experiments/japanese_vowels.py
Data      s2sjax data get japanese_vowels: train.tsv, 270 utterances; about 30% of them, by a hash, are held out as dev
Hardware  1 ARM core, no accelerator; about half a minute of CPU time
Score     accuracy 98.67% (74 of 75), 97.33%, 97.33% for seeds 0, 1, 2 (the last two on an x86 core)

Dev is evaluated once, after the last step, and is not used to choose anything.
"""

from s2sjax.config import Luong, Train
from s2sjax.tasks import Classification
from s2sjax.tasks.classification import LabelData, LabelledFrames, LabelModel

experiment = Classification(
    name="japanese_vowels",
    data=LabelData(
        LabelledFrames("data:japanese_vowels", dev_percent=30.0, origin="Japanese Vowels (Kudo et al. 1999)"),
        buckets=((30,),),
        batch_tokens=30 * 32,
    ),
    model=LabelModel(
        Luong(width=64, embedding_size=0, layers=1, cell="gru", bidirectional=True, dropout=0.2),
        "attention",
        dropout=0.3,
    ),
    train=Train(steps=400, learning_rate=3e-3, warmup_steps=50, evaluate_every=400, save_every=400),
)
