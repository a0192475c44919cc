"""English to German descriptions of pictures: the systems of systems/ with about 8 million weights each.

Command   python experiments/multi30k_systems.py               trains all, with five seeds: runs/systems-translation
          s2sjax train experiments/multi30k_systems.py         trains RNNsearch
Data      that of experiments/multi30k.py
Budget    3,000 updates of 8,192 tokens, dropout 0.2, one learning rate for all. The models that give each source
          position one output, and the one that reads letters, do not translate: they are left out
Score     tokenised lower-case BLEU on test 2016, 15.15 (rctm) to 38.02 (transformer): docs/systems/comparison.md
"""

import sys
from pathlib import Path

import s2sjax
from s2sjax.config import GNMT, RCTM, Cho, ConvS2S, Luong, Pair, RNNsearch, Sutskever, Transformer, replace
from s2sjax.errors import UserError
from s2sjax.runs.experiment_file import load_experiment

encoder = Transformer(width=192, heads=4, feedforward=768, encoder_layers=3, norm="pre", dropout=0.2)
luong = Luong(width=272, embedding_size=192, layers=1, bidirectional=True, dropout=0.2)
MODELS = {
    "rctm": RCTM(width=304, embedding_size=192, dropout=0.2),
    "cho": Cho(width=368, embedding_size=192, dropout=0.2),
    "sutskever": Sutskever(width=240, embedding_size=192, layers=2, dropout=0.2),
    "rnnsearch": RNNsearch(width=272, embedding_size=192, dropout=0.2),
    "luong": luong,
    "luong_local": replace(luong, window="predictive", radius=5),
    "luong_mingru": replace(luong, width=320, layers=2, cell="mingru", input_feeding=False),
    "gnmt": GNMT(width=176, embedding_size=192, layers=3, dropout=0.2),
    "convs2s": ConvS2S(
        embedding_size=192, encoder_layers=((208, 3),) * 4, decoder_layers=((208, 3),) * 3, max_length=256, dropout=0.2
    ),
    "transformer": Transformer(
        width=208, heads=4, feedforward=832, encoder_layers=3, decoder_layers=3, norm="pre", dropout=0.2
    ),
    "pair": Pair(encoder, RNNsearch(width=192, embedding_size=192, dropout=0.2)),
}

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="systems-translation",
    model=MODELS["rnnsearch"],
    train=replace(base.train, steps=3000, warmup_steps=400, r_drop=0.0, ema=0.998, evaluate_every=500, save_every=500),
    show=(),
)

if __name__ == "__main__":
    try:
        s2sjax.sweep(__file__, {"model": MODELS, "seed": range(5)}, "runs/systems-translation")
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again to continue")
