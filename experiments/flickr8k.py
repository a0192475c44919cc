"""Captions of photos: Show, Attend and Tell on Flickr8k, trained from scratch.

Paper     Xu et al. 2015, Show, Attend and Tell: soft attention, doubly stochastic penalty
Command   s2sjax train experiments/flickr8k.py                  (pip install pillow)
Data      s2sjax data get flickr8k: 128 x 128 pixels, 5 captions a photo. A hash of the names takes 5% of the training
          photos to choose the checkpoint; the official dev part (1,000 photos) is scored once, at the end, as test
Published BLEU-1 to 4 of 67, 44.8, 29.9 and 19.5 on the official test part, with full-size photos and an encoder that
          was trained on ImageNet: a different, easier setting
Metric    BLEU-n of sacreBLEU against 5 references, in lower case, without punctuation, words separated by blanks, no
          smoothing
Hardware  one H200, shared with four other training runs; 487 s, 14,635,564 weights
Score     BLEU-1 to 4: 45.12, 27.77, 17.01 and 10.88, beam 5, seed 0
          (nrefs:5|case:mixed|eff:no|tok:none|smooth:none|version:2.6.0)
"""

from s2sjax.config import Pair, RNNsearch, Search, Text, Train
from s2sjax.models.families.identity import Identity
from s2sjax.tasks import Captioning
from s2sjax.tasks.captioning import CaptionData, CaptionEvaluate, CaptionModel, PictureChanges
from s2sjax.tasks.captioning.captioned_pictures import CaptionedFiles
from s2sjax.tasks.captioning.picture_grid import Grid

experiment = Captioning(
    name="flickr8k",
    data=CaptionData(
        CaptionedFiles("data:flickr8k"),
        Text(unit="words", min_count=5),
        augment=PictureChanges(zoom=0.4, flip=0.5, colour=0.3),
        buckets=((12,), (16,), (24,), (40,)),
        batch_tokens=4096,
    ),
    model=CaptionModel(
        Grid(channels=(48, 96, 192, 384), blocks=2),
        Pair(Identity(512, dropout=0.3), RNNsearch(width=512, embedding_size=256, cell="lstm", dropout=0.5)),
        attention_penalty=1.0,
    ),
    train=Train(
        steps=6000,
        learning_rate=1e-3,
        warmup_steps=500,
        schedule="cosine",
        weight_decay=0.05,
        label_smoothing=0.1,
        ema=0.998,
        dtype="bfloat16",
        evaluate_every=500,
        save_every=500,
    ),
    search=Search(beam_size=5, max_length=30),
    evaluate=CaptionEvaluate(batch_size=250),
)
