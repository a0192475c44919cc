"""Written numbers, read as columns of pixels from left to right: CTC on scikit-learn's digits. Needs no download.

Paper     Graves et al. 2006, Connectionist Temporal Classification
Command   s2sjax train experiments/sklearn_digits.py            (pip install scikit-learn)
Data      1,797 digits of 8 by 8 pixels; numbers of 1 to 5 digits with 0 to 2 empty columns between. 15 % of the digits
          are only in test numbers, 5 % only in dev numbers
Hardware  one ARM core, 1 min 44 s of its time; no accelerator
Score     test LER 1.64 %, SER 4.60 % on 500 numbers, greedy, seed 0; 103,563 weights
"""

from s2sjax.config import Luong, Train
from s2sjax.data.signals import Strings
from s2sjax.data.signals.handwritten_digits import SklearnDigits
from s2sjax.tasks import Recognition
from s2sjax.tasks.recognition import Augment, LabelledSignals, RecognitionEvaluate, RecognizerModel

experiment = Recognition(
    name="sklearn_digits",
    data=LabelledSignals(
        SklearnDigits(strings=Strings(train=5000, dev=300, test=500, longest=5)),
        augment=Augment(speed=0.1, noise=0.2),
        buckets=((32, 5), (56, 5)),
        batch_tokens=1920,
    ),
    model=RecognizerModel(
        Luong(width=128, embedding_size=0, layers=2, cell="gru", bidirectional=True, dropout=0.2), dropout=0.2
    ),
    train=Train(steps=600, learning_rate=3e-3, warmup_steps=100, evaluate_every=200, save_every=200),
    evaluate=RecognitionEvaluate(samples=2, drawn=3),
)
