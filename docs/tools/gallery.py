"""Draws the figures of docs/gallery.md that move, after `make run`:

python docs/tools/gallery.py runs/g2p
"""

import sys
from pathlib import Path

import s2sjax
from s2sjax import interactive

FOLDER = Path(__file__).parents[1] / "gallery"


def main(folder: str) -> None:
    run = s2sjax.load(folder)
    found = run.attention("schwarzwaldine")
    figures = {
        "decoding": interactive.decoding(found.source, found.target, found.weights),
        "beam_search": interactive.beam_search(run.tree("jaxon", beam_size=3)),
        "receptive_fields": interactive.receptive_fields(
            15,
            {
                "convolutions": [interactive.Convolution(3)] * 3,
                "dilated convolutions": [interactive.Convolution(3, dilation) for dilation in (1, 2, 4)],
                "a recurrent layer": [interactive.Recurrence()],
                "self-attention": [interactive.SelfAttention()],
            },
        ),
        "edit_distance": interactive.edit_distance("intention", "execution"),
    }
    for name, figure in figures.items():
        path = figure.save(FOLDER / f"{name}.html")
        print(f"{path.relative_to(FOLDER.parents[1])}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1])
