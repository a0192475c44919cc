"""The figures of docs/gallery.md that move. The site draws them when it is built, from a few stored values of a run.

python docs/tools/gallery.py runs/g2p       stores the values again, after `make run`
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

VALUES = Path(__file__).parents[1] / "gallery/values.json"


def figures() -> dict[str, Any]:
    """The figures by the names that the page uses."""
    from s2sjax import interactive
    from s2sjax.core.search.hypotheses import Hypotheses, Tree
    from s2sjax.evaluate.figures.search_trees import SearchTree

    values = json.loads(VALUES.read_text(encoding="utf-8"))
    tree, found = (type_(*map(np.array, values[name])) for type_, name in ((Tree, "tree"), (Hypotheses, "found")))
    networks = {
        "convolutions": [interactive.Convolution(3)] * 3,
        "dilated convolutions": [interactive.Convolution(3, dilation) for dilation in (1, 2, 4)],
        "a recurrent layer": [interactive.Recurrence()],
        "self-attention": [interactive.SelfAttention()],
    }
    return {
        "decoding": interactive.decoding(**values["decoding"]),
        "beam_search": interactive.beam_search(SearchTree(tree, found, lambda ids: [values["pieces"][i] for i in ids])),
        "receptive_fields": interactive.receptive_fields(15, networks),
        "edit_distance": interactive.edit_distance("intention", "execution"),
    }


def store(folder: str) -> None:
    """Writes the values of a trained run that the figures show."""
    import s2sjax

    run = s2sjax.load(folder)
    source, target, weights, *_ = run.attention("schwarzwaldine")
    tree, found, pieces = run.tree("jaxon", beam_size=3)
    size = run.task.assets["target"].size
    values = {
        "decoding": {"source": source, "target": target, "attention": rounded(weights)},
        "tree": [rounded(array) for array in tree],
        "found": [rounded(array) for array in found],
        "pieces": [pieces([index])[0] for index in range(size)],
    }
    VALUES.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{VALUES.relative_to(VALUES.parents[2])}  {VALUES.stat().st_size / 1000:.0f} kB")


def rounded(values: Any) -> Any:
    """An array as lists: integers and booleans as they are, real numbers with three digits."""
    array = np.asarray(values)
    return (array if array.dtype.kind in "iub" else np.round(array.astype(float), 3)).tolist()


if __name__ == "__main__":
    store(sys.argv[1])
