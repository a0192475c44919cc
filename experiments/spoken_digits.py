"""Strings of spoken digits by speakers that are not in train: CTC on the Free Spoken Digit Dataset.

Paper     Graves et al. 2006, Connectionist Temporal Classification; augmentation after Park et al. 2019 (SpecAugment),
          Ko et al. 2015 (speed) and Jaitly and Hinton 2013 (vocal tract length)
Command   s2sjax train experiments/spoken_digits.py             (pip install soundfile)
Data      s2sjax data get fsdd: takes 5 to 49 of six speakers. Recordings of one speaker are joined to strings of 1 to 5
          digits with up to 0.2 s of silence between. Test strings: theo and yweweler, the last two by alphabet, who are
          in no other split. Dev strings: the last 5 takes of the other four, which are used to choose the checkpoint
Hardware  one H200, shared with three other training runs; 339 s, 1,260,651 weights
Score     label error rate 12.03%, strings with an error 24.70%: 1,000 test strings, greedy, seed 0. Dev, other takes of
          the training speakers: 0.08%. With noise of at most 0.1 and no filters: 14.81%, 28.00% and 0.25%. It is not a
          clean test: docs/systems/speech.md says how the settings were chosen
"""

from s2sjax.config import Luong, Train
from s2sjax.data.signals import Strings
from s2sjax.data.signals.spoken_digits import SpokenDigits
from s2sjax.tasks import Recognition
from s2sjax.tasks.recognition import Augment, LabelledSignals, RecognitionEvaluate, RecognizerModel

experiment = Recognition(
    name="spoken_digits",
    data=LabelledSignals(
        SpokenDigits(
            "data:fsdd", Strings(train=12_000, dev=400, test=1000, longest=5), voices=0.2, noise=0.3, channel=1.0
        ),
        augment=Augment(speed=0.2, pitch=0.1, noise=0.1, time_masks=2, time_width=12, feature_masks=2, feature_width=8),
        buckets=((160, 5), (320, 5), (480, 5)),
        batch_tokens=24_576,
    ),
    model=RecognizerModel(
        Luong(width=256, embedding_size=0, layers=3, cell="lstm", bidirectional=True, dropout=0.3),
        channels=32,
        dropout=0.3,
    ),
    train=Train(steps=3000, learning_rate=2e-3, warmup_steps=200, evaluate_every=500, save_every=500, ema=0.998),
    evaluate=RecognitionEvaluate(samples=2, drawn=3),
)
