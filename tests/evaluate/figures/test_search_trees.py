"""A beam search of width two, written down by hand, and its drawing.

<sos> - a -0.5 - <eos> -2.0        finished
               - b -0.75 - <eos> -1.0      finished: the best
      - b -1.0 - <eos> -1.25       finished
               - b -9.0            pruned
      - <eos> -8.0                 pruned: it is not among the two best of its step
"""

import numpy as np
import pytest
from matplotlib.image import imread

from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.core.special_tokens import EOS
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import attention_maps, search_tree_layout, search_trees, style

A, B, NEVER = 4, 5, -np.inf
TREE = Tree(
    parents=np.array([[[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]]),
    tokens=np.array([[[A, B, EOS, 0], [B, EOS, EOS, B], [EOS, 0, 0, 0]]]),
    log_probs=np.array([[[-0.5, -1.0, -8.0, NEVER], [-0.75, -1.25, -2.0, -9.0], [-1.0, NEVER, NEVER, NEVER]]]),
    ended=np.array([[[False, False, False, False], [False, True, True, False], [True, False, False, False]]]),
    lives=np.array([[[0, 1], [0, 3], [1, 2]]]),
)
FOUND = Hypotheses(
    np.array([[A, B, EOS], [B, EOS, 0]]), np.array([3, 2]), np.array([-0.333, -0.625]), np.array([-1.0, -1.25])
)
PIECES = {A: "a", B: "b", EOS: "</s>"}


def draw(path, monkeypatch) -> list:
    """The lines of the drawing, as arrays of points [3, 2]."""
    kept = []
    monkeypatch.setattr(search_trees, "save", lambda figure, path: kept.append(figure) or style.save(figure, path))
    search_trees.search_tree(path, TREE, FOUND, lambda ids: [PIECES[token] for token in ids])
    return [line.get_xydata() for line in kept[0].axes[0].lines if len(line.get_xydata()) == 3]


def test_branches_are_unbroken_and_begin_where_their_parent_ends(tmp_path, monkeypatch):
    lines = draw(tmp_path / "tree.png", monkeypatch)
    every = search_tree_layout.nodes(TREE)
    assert len(lines) == len(every) == 8
    root = lines[0][0].tolist()
    for node, line in zip(every, lines):
        assert line[0].tolist() == (root if node.parent < 0 else lines[node.parent][-1].tolist())
        assert line[1, 0] < line[2, 0] and line[1, 1] == line[2, 1]


def test_all_numbers_are_log_probabilities_and_a_legend_explains_the_rest(tmp_path, monkeypatch):
    draw(tmp_path / "tree.svg", monkeypatch)
    svg = (tmp_path / "tree.svg").read_text(encoding="utf-8")
    words = [part.split(" -->")[0] for part in svg.split("<!-- ")[1:]]
    numbers = sorted(float(word.replace("\N{MINUS SIGN}", "-")) for word in words if word.startswith("-"))
    assert numbers == [-9.0, -8.0, -2.0, -1.25, -1.0, -1.0, -0.75, -0.5]
    assert {"#1", "#2"} <= set(words) and "#3" not in words
    assert {"best output", "pruned", "small numbers: log-probability of the output so far"} <= set(words)


def test_the_best_output_is_blue(tmp_path, monkeypatch):
    draw(tmp_path / "tree.png", monkeypatch)
    picture = (imread(tmp_path / "tree.png")[..., :3] * 255).round().astype(int)
    assert np.sum((picture == (31, 90, 150)).all(-1)) > 500


def test_thousands_of_steps_are_placed():
    chain = [search_tree_layout.Node(n - 1, A, n, -float(n), False) for n in range(5000)]
    heights, root = search_tree_layout.heights(chain)
    assert set(heights) == {0.0} and root == 0.0


def test_an_empty_tree_is_refused(tmp_path):
    empty = TREE._replace(log_probs=np.full_like(TREE.log_probs, NEVER))
    with pytest.raises(UserError, match="the search tree is empty"):
        search_trees.search_tree(tmp_path / "tree.png", empty, FOUND, list)


def test_a_huge_figure_has_fewer_dots(tmp_path):
    weights = np.zeros((2, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "LONGEST_SIDE", 150)
        attention_maps.attention_map(tmp_path / "small.png", ["a", "b"], ["x", "y"], weights)
    assert max(imread(tmp_path / "small.png").shape) < 250
