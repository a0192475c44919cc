"""Written numbers as pen strokes: CTC on the Pen-Based Recognition of Handwritten Digits.

Paper     Graves et al. 2006, Connectionist Temporal Classification; Graves et al. 2009 on handwriting
Command   s2sjax train experiments/pen_digits.py
Data      s2sjax data get pendigits (Alpaydin and Alimoglu 1998): 7,494 digits, each a path of 8 points. Numbers of 1
          to 5 digits side by side; the model reads heights and steps, but not where a digit begins, except with
          --data.corpus.pen_lifts True (each digit has 8 points, so a model could count). 15 % of the digits are only in
          test numbers, 5 % only in dev numbers; writers are not marked in the data, so they are in all splits
Hardware  one H200, shared with six other training runs; 207 s, 135,563 weights
Score     label error rate 0.98%, sequences with an error 2.90%, 1,000 test numbers, greedy, seed 0
"""

from s2sjax.config import Luong, Train
from s2sjax.data.signals import Strings
from s2sjax.data.signals.handwritten_digits import PenDigits
from s2sjax.tasks import Recognition
from s2sjax.tasks.recognition import Augment, LabelledSignals, RecognitionEvaluate, RecognizerModel

experiment = Recognition(
    name="pen_digits",
    data=LabelledSignals(
        PenDigits("data:pendigits", Strings(train=20_000, dev=500, test=1000, longest=5)),
        augment=Augment(noise=0.05),
        buckets=((24, 5), (40, 5)),
        batch_tokens=4096,
    ),
    model=RecognizerModel(
        Luong(width=128, embedding_size=0, layers=2, cell="lstm", bidirectional=True, dropout=0.2), dropout=0.2
    ),
    train=Train(steps=3000, learning_rate=3e-3, warmup_steps=100, evaluate_every=500, save_every=500),
    evaluate=RecognitionEvaluate(samples=2, drawn=3),
)
