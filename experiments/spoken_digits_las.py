"""Strings of spoken digits by speakers that are not in train: Listen, Attend and Spell.

Paper     Chan et al. 2016, Listen, Attend and Spell
Command   s2sjax train experiments/spoken_digits_las.py         (pip install soundfile)
Data      the strings of spoken_digits.py, which reads them by CTC: dev and test are the same. Training strings have
          less noise and no filters, which dev prefers: 0.17% against 0.75%
Hardware  one H200, shared with eight other training runs; 438 s, 1,387,694 weights
Score     label error rate 12.78%, strings with an error 25.30%: 1,000 test strings of speakers that are not in
          train, beam 4, seed 0. Dev, other takes of the training speakers: 0.17%. With the noise and the filters
          of spoken_digits.py: 16.47%, 33.30% and 0.75%. It is not a clean test: docs/systems/speech.md says how the
          settings were chosen
"""

from s2sjax.config import RNNsearch, Search, Train
from s2sjax.data.signals import Strings
from s2sjax.data.signals.spoken_digits import SpokenDigits
from s2sjax.tasks import Transcription
from s2sjax.tasks.recognition import Augment, LabelledSignals, RecognitionEvaluate
from s2sjax.tasks.transcription import SpellerModel

experiment = Transcription(
    name="spoken_digits_las",
    data=LabelledSignals(
        SpokenDigits("data:fsdd", Strings(train=12_000, dev=400, test=1000, longest=5), voices=0.2, noise=0.1),
        augment=Augment(speed=0.2, pitch=0.1, noise=0.1, time_masks=2, time_width=12, feature_masks=2, feature_width=8),
        ngram=0,
        buckets=((160, 6), (320, 6), (480, 6)),
        batch_tokens=24_576,
    ),
    model=SpellerModel(
        RNNsearch(width=128, embedding_size=64, encoder_layers=3, cell="lstm", dropout=0.3),
        channels=32,
    ),
    train=Train(
        steps=3000,
        learning_rate=2e-3,
        warmup_steps=200,
        evaluate_every=500,
        save_every=500,
        ema=0.998,
        label_smoothing=0.1,
    ),
    search=Search(beam_size=4, max_length=8),
    evaluate=RecognitionEvaluate(samples=2, drawn=3),
)
