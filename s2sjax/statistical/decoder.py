"""A stack decoder for phrases (Koehn, Och and Marcu 2003): the y with the highest

    sum_k weight_k feature_k(x, y)

which with weights 1 for p(x | y) and p(y), and 0 for the rest, is the noisy channel p(x | y) p(y).

A hypothesis covers some source words and has written the beginning of y. It is extended by a phrase of words that are
not covered. Stack m has the hypotheses that cover m words:

- **Recombination**: of hypotheses that cover the same words, end at the same source word and have the same language
  model state, all futures are equal. They become one, which remembers how each of them was reached.
- **Beam**: only the best are kept, by score plus future cost. Extensions are tried in the order of their promise until
  `beam` of them are in the stack (cube pruning, Huang and Chiang 2007).
- **Future cost**: an estimate of the best score of the words that are not covered. Otherwise hypotheses that cover the
  easy words first would win.
- **Distortion limit**: the number of words that may be skipped, forwards or backwards; 0 is monotone translation.

Letters: n source words; a coverage is an integer whose bit i is set if word i is covered.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from s2sjax.statistical.ngrams import END, START, Gram, NGrams
from s2sjax.statistical.phrases import Phrase, Words

Span = tuple[int, int]
MOST_WAYS = 10
"""maximum number of ways to the end per translation of an n-best list; many ways lead to the same words"""


class Weights(NamedTuple):
    """The weights of the features."""

    inverse: float = 0.2
    """log p(x | y)"""
    inverse_lexical: float = 0.2
    """log lex(x | y)"""
    direct: float = 0.2
    """log p(y | x)"""
    direct_lexical: float = 0.2
    """log lex(y | x)"""
    language: float = 0.5
    """log p(y)"""
    distortion: float = 0.3
    """minus the number of skipped source words, from the end of each phrase to the beginning of the next"""
    phrases: float = 0.2
    """number of phrases"""
    words: float = 0.5
    """number of words of y; above 0, because p(y) prefers short sentences"""


WEIGHTS = Weights()
NOISY_CHANNEL = Weights(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
"""p(x | y) p(y), where skipping a word costs a factor of e"""


class Search(NamedTuple):
    """The limits of the search."""

    beam: int | None = 100
    """number of extensions of each stack; None: all"""
    options: int | None = 20
    """number of translations of each source phrase; None: all"""
    distortion: int | None = 6
    """distortion limit, in words; None: any order"""
    recombine: bool = True
    future_cost: bool = True


SEARCH = Search()


class Hypothesis(NamedTuple):
    """A translation."""

    words: Words
    score: float
    features: tuple[float, ...]
    """one number for each of Weights"""
    phrases: tuple[tuple[Span, Words], ...]
    """the source span and the target words of each phrase, in the order of the target"""


class Option(NamedTuple):
    """A translation of a span of the sentence."""

    begin: int
    end: int
    phrase: Phrase
    score: float
    """weighted features, without distortion and language model"""
    promise: float
    """score with the language model inside of the phrase"""


class Node:
    """A hypothesis of the search, with all ways in which it was reached."""

    __slots__ = ("arcs", "coverage", "end", "score", "state")

    def __init__(self, score: float, coverage: int, end: int, state: Gram):
        self.score, self.coverage, self.end, self.state = score, coverage, end, state
        self.arcs: list[tuple[Node, Option, float, float]] = []
        """the node before, the phrase, its language model score, and the weighted score of this step"""


Groups = list[tuple[int, int, list[Node]]]
"""nodes of a stack by coverage and end, the best first"""


def decode(
    source: Words, lookup: Callable[[Words], Sequence[Phrase]], longest: int, language: NGrams,
    weights: Weights = WEIGHTS, search: Search = SEARCH, n: int = 1,
) -> list[Hypothesis]:  # fmt: skip
    """The `n` best translations of a sentence that differ in their words, the best first.

    lookup: translations of a source phrase, which has at most `longest` words. A word without any is copied.
    """
    if not source:
        return [Hypothesis((), 0.0, (0.0,) * len(weights), ())]
    options = _options(source, lookup, longest, language, weights, search.options)
    return _best(_merged(_Decoding(len(source), options, language, weights, search).final_stack()), n)


# --------------------------------------------------------------------------------------- options


def _options(
    source: Words, lookup: Callable[[Words], Sequence[Phrase]], longest: int, language: NGrams, weights: Weights,
    most: int | None,
) -> dict[Span, list[Option]]:  # fmt: skip
    """The translations of each span, the most promising first."""
    found = {}
    for begin in range(len(source)):
        for end in range(begin + 1, min(begin + longest, len(source)) + 1):
            phrases = lookup(source[begin:end])
            if not phrases and end == begin + 1:
                phrases = [Phrase(source[begin:end], (0.0, 0.0, 0.0, 0.0))]
            if phrases:
                options = [_option(begin, end, phrase, language, weights) for phrase in phrases]
                options.sort(key=lambda option: -option.promise)
                found[begin, end] = options[:most]
    return found


def _option(begin: int, end: int, phrase: Phrase, language: NGrams, weights: Weights) -> Option:
    score = sum(w * f for w, f in zip(weights, phrase.features))
    score += weights.phrases + weights.words * len(phrase.words)
    return Option(begin, end, phrase, score, score + weights.language * language.extend((), phrase.words)[0])


def _future_costs(n: int, options: dict[Span, list[Option]]) -> list[list[float]]:
    """[begin][end]: an estimate of the best score of the words from begin to end, by dynamic programming."""
    best = [[float("-inf")] * (n + 1) for _ in range(n + 1)]
    for size in range(1, n + 1):
        for begin in range(n - size + 1):
            end = begin + size
            splits = [best[begin][middle] + best[middle][end] for middle in range(begin + 1, end)]
            whole = [options[begin, end][0].promise] if (begin, end) in options else []
            best[begin][end] = max(splits + whole)
    return best


# ---------------------------------------------------------------------------------------- search


class _Cube(NamedTuple):
    """The extensions of some nodes with the same coverage by the options of one span, both the best first."""

    nodes: list[Node]
    options: list[Option]
    coverage: int
    """coverage after the extension"""
    distance: int
    future: float


class _Extension(NamedTuple):
    """A node extended by an option. They are sorted by `key`."""

    key: tuple[float, int]
    """minus score and future cost, and a number that is different for each"""
    cube: _Cube
    row: int
    column: int
    lm: float
    state: Gram
    step: float


class _Decoding:
    """The search for the translations of one sentence."""

    def __init__(
        self, n: int, options: dict[Span, list[Option]], language: NGrams, weights: Weights, search: Search
    ):  # fmt: skip
        self.n, self.options, self.language, self.weights, self.search = n, options, language, weights, search
        self._costs = _future_costs(n, options)
        self._futures: dict[int, float] = {}
        self._read: dict[tuple[Gram, Words, bool], tuple[float, Gram]] = {}
        self._number = count()

    def final_stack(self) -> list[Node]:
        """The nodes that cover the whole sentence."""
        stack = [Node(0.0, 0, 0, self.language.state((START,)))]
        groups = [_grouped(stack)]
        for size in range(1, self.n + 1):
            stack = self._stack(groups, size)
            groups.append(_grouped(stack))
        return stack

    def _stack(self, groups: Sequence[Groups], size: int) -> list[Node]:
        """The nodes that cover `size` words, from those of the stacks before."""
        heap: list[_Extension] = []
        for cube in self._cubes(groups, size):
            self._push(heap, cube, 0, 0)
        stack: dict[tuple, Node] = {}
        popped = 0
        while heap and (self.search.beam is None or popped < self.search.beam):
            _, cube, row, column, lm, state, step = heapq.heappop(heap)
            popped += 1
            before, option = cube.nodes[row], cube.options[column]
            # At the end nothing follows, so all translations are one node.
            key: tuple = (cube.coverage, 0 if size == self.n else option.end, state)
            key = key if self.search.recombine else (popped,)
            score = before.score + step
            node = stack.get(key)
            if node is None:
                node = stack[key] = Node(score, cube.coverage, option.end, state)
            node.score = max(node.score, score)
            node.arcs.append((before, option, lm, step))
            self._push(heap, cube, row, column + 1)
            if column == 0:
                self._push(heap, cube, row + 1, 0)
        return list(stack.values())

    def _cubes(self, groups: Sequence[Groups], size: int) -> Iterator[_Cube]:
        for span, options in self.options.items():
            before = size - (span[1] - span[0])
            for coverage, end, nodes in groups[before] if before >= 0 else ():
                if _allowed(coverage, end, span, self.search.distortion):
                    after = coverage | _bits(span)
                    yield _Cube(nodes, options, after, abs(span[0] - end), self._future(after))

    def _push(self, heap: list[_Extension], cube: _Cube, row: int, column: int) -> None:
        if row < len(cube.nodes) and column < len(cube.options):
            node, option = cube.nodes[row], cube.options[column]
            lm, state = self._extend(node.state, option.phrase.words, cube.coverage == (1 << self.n) - 1)
            step = option.score + self.weights.language * lm - self.weights.distortion * cube.distance
            key = (-(node.score + step + cube.future), next(self._number))
            heapq.heappush(heap, _Extension(key, cube, row, column, lm, state, step))

    def _extend(self, state: Gram, words: Words, last: bool) -> tuple[float, Gram]:
        """The language model score of words after a state, with the end of the sentence if they are the last."""
        key = (state, words, last)
        if key not in self._read:
            total, after = self.language.extend(state, words)
            self._read[key] = (total + self.language.log_prob(END, after), ()) if last else (total, after)
        return self._read[key]

    def _future(self, coverage: int) -> float:
        if coverage not in self._futures:
            costs = (self._costs[begin][end] for begin, end in _gaps(coverage, self.n))
            self._futures[coverage] = sum(costs) if self.search.future_cost else 0.0
        return self._futures[coverage]


def _grouped(stack: Sequence[Node]) -> Groups:
    groups = defaultdict(list)
    for node in stack:
        groups[node.coverage, node.end].append(node)
    return [(*place, sorted(nodes, key=lambda node: -node.score)) for place, nodes in groups.items()]


def _bits(span: Span) -> int:
    return (1 << span[1]) - (1 << span[0])


def _gaps(coverage: int, n: int) -> Iterator[Span]:
    """The spans of words that are not covered."""
    begin = 0
    while begin < n:
        if coverage >> begin & 1:
            begin += 1
            continue
        end = begin
        while end < n and not coverage >> end & 1:
            end += 1
        yield begin, end
        begin = end


def _allowed(coverage: int, end: int, span: Span, limit: int | None) -> bool:
    """Whether a phrase may follow: its words are free, it is near, and the first gap stays near enough to be filled."""
    if coverage & _bits(span):
        return False
    if limit is None:
        return True
    gap = (~coverage & (coverage + 1)).bit_length() - 1  # the first word that is not covered
    return abs(span[0] - end) <= limit and (span[0] == gap or span[1] - gap <= limit)


# ----------------------------------------------------------------------------- the best of a graph


def _merged(nodes: Sequence[Node]) -> Node:
    """A final node that is reached in all ways in which the given ones are."""
    final = Node(max(node.score for node in nodes), nodes[0].coverage, 0, ())
    final.arcs = [arc for node in nodes for arc in node.arcs]
    return final


def _best(final: Node, n: int) -> list[Hypothesis]:
    """The n best translations with different words, from the end backwards: the score of a node is exactly that of the
    best way to it, so that they come out in order (A* search).
    """
    found: dict[Words, Hypothesis] = {}
    heap: list[tuple[float, int, Node, float, tuple]] = [(-final.score, 0, final, 0.0, ())]
    number = count(1)
    ways = 0
    while heap and len(found) < n and ways < MOST_WAYS * n:
        _, _, node, after, path = heapq.heappop(heap)
        if not node.arcs:
            ways += 1
            steps = _steps(path)
            words = tuple(word for option, _ in steps for word in option.phrase.words)
            if words not in found:
                found[words] = _hypothesis(words, steps, after)
        for before, option, lm, step in node.arcs:
            total = after + step
            item = (-(before.score + total), next(number), before, total, ((option, lm), path))
            heapq.heappush(heap, item)
    return list(found.values())


def _steps(path: tuple) -> list[tuple[Option, float]]:
    steps = []
    while path:
        step, path = path
        steps.append(step)
    return steps


def _hypothesis(words: Words, steps: Sequence[tuple[Option, float]], score: float) -> Hypothesis:
    ends = (0, *(option.end for option, _ in steps))
    features = (
        *map(sum, zip(*(option.phrase.features for option, _ in steps))),
        sum(lm for _, lm in steps),
        -float(sum(abs(option.begin - end) for (option, _), end in zip(steps, ends))),
        float(len(steps)),
        float(len(words)),
    )
    return Hypothesis(words, score, features, tuple(((o.begin, o.end), o.phrase.words) for o, _ in steps))
