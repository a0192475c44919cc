"""Word alignment. See docs/alignment.md.

from s2sjax import align
aligned = align.fit([("das Haus", "the house"), ("ein Haus", "a house")])
aligned.links("intersection")                   the links of each pair, as sets of (source word, target word)
"""

from s2sjax.align.aligner import Aligned, fit
from s2sjax.align.gold import Agreement, Gold, parse, pharaoh, score
from s2sjax.align.symmetrize import METHODS, Link

__all__ = ["METHODS", "Agreement", "Aligned", "Gold", "Link", "fit", "parse", "pharaoh", "score"]
