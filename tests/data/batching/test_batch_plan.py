"""The batch at step t is a pure function of (data, seed, t). Each row occurs exactly once per epoch."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax.data.batching.batch_plan import (
    Plan,
    evaluation_batches,
    joined_buckets,
    make_batch,
    round_length,
    rows_that_fit,
    stream,
)
from s2sjax.data.batching.columns import Columns, Ragged, first_bucket
from s2sjax.data.examples import Example
from s2sjax.data.pairs import encode
from s2sjax.data.text.vocabulary import EOS, PAD, Vocabulary
from s2sjax.errors import UserError

BUCKETS = ((4, 6), (8, 8), (8, 16))
unhurried = settings(deadline=None, max_examples=50)  # test machines may be slow
LETTERS = Vocabulary("characters", "abcdefghij")

lengths_of = st.lists(st.tuples(st.integers(1, 10), st.integers(1, 20)), min_size=1, max_size=80)
plans = st.builds(
    lambda lengths, tokens, seed, multiple: Plan(np.array([(1, 1), *lengths]), BUCKETS, tokens, seed, multiple),
    lengths_of, st.integers(1, 200), st.integers(-3, 2**40), st.sampled_from([1, 2, 3, 8]),
)  # fmt: skip


def some_pairs(count=40):
    """Pair n: n % 7 + 1 source letters, n % 5 + 1 target letters."""
    return encode([Example("abcdefg"[: n % 7 + 1], ("jihgf"[: n % 5 + 1],)) for n in range(count)], LETTERS, LETTERS)


def some_plan(pairs, **changes):
    return Plan(pairs.lengths, BUCKETS, **{"tokens": 48, "seed": 3, "multiple": 2, **changes})


def equal(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


# ----------------------------------------------------------------------------------------- pairs


def test_ragged_sequences_end_in_eos_and_pad_to_any_width():
    ragged = Ragged.of_ids([[7], [8, 9], []])
    assert ragged.flat.tolist() == [7, EOS, 8, 9, EOS, EOS] and ragged.offsets.tolist() == [0, 2, 5, 6]
    padded = ragged.padded(np.array([1, -1, 2, 0]), 4)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[8, 9, EOS, PAD], [PAD] * 4, [EOS, PAD, PAD, PAD], [7, EOS, PAD, PAD]]


def test_an_example_gives_a_pair_for_each_target():
    pairs = encode([Example("ab", ("c", "dd")), Example("a", ("",))], LETTERS, LETTERS)
    assert pairs.example.tolist() == [0, 0, 1]
    assert pairs.lengths.tolist() == [[3, 2], [3, 3], [2, 1]]
    assert pairs.ragged["source"].padded(np.arange(3), 3).tolist() == [[4, 5, EOS], [4, 5, EOS], [4, EOS, PAD]]
    assert pairs.ragged["target"].padded(np.arange(3), 3).tolist() == [[6, EOS, PAD], [7, 7, EOS], [EOS, PAD, PAD]]


def test_pairs_too_long_are_counted_and_never_planned():
    examples = [Example("a" * n, ("b",)) for n in (3, 7, 8, 40)]  # with <eos>: 4, 8, 9, 41
    pairs = encode(examples, LETTERS, LETTERS)
    plan = some_plan(pairs)
    assert plan.left_out == 2
    planned = {row for step in range(plan.steps_per_epoch) for row in plan.at(step)[1] if row >= 0}
    assert planned == {0, 1}


def test_the_first_bucket_that_holds_both_sides():
    lengths = np.array([(4, 6), (5, 6), (4, 7), (8, 9), (9, 1), (1, 17)])
    assert first_bucket(lengths, BUCKETS).tolist() == [0, 1, 1, 2, -1, -1]


def test_frames_come_with_their_lengths_and_dense_columns_with_zeros():
    """A task of real numbers: series [*, F] in, one number out. A row of padding is zeros of length 0."""
    series = Ragged.of_frames([np.array([[0.1, 1.0], [0.2, 2.0]]), np.array([[0.3, 3.0]])])
    columns = Columns({"series": series}, {"target": np.array([[5.0], [6.0]], np.float32)}, np.array([7, 8]), (2,))
    assert columns.lengths.tolist() == [[2], [1]]
    batch = columns.batch(np.array([1, -1, 0]), (3,))
    assert batch["series"].shape == (3, 3, 2) and batch["series"].dtype == np.float32
    np.testing.assert_allclose(batch["series"][2], [[0.1, 1], [0.2, 2], [0, 0]], rtol=1e-6)
    assert not batch["series"][1].any()
    assert batch["series_lengths"].tolist() == [1, 0, 2]
    assert batch["target"].tolist() == [[6], [0], [5]]
    assert batch["example"].tolist() == [8, -1, 7]
    plan = Plan(columns.lengths, ((1,), (4,)), tokens=8, seed=0)
    assert plan.rows == (8, 2) and plan.steps_per_epoch == 2


# ------------------------------------------------------------------------------------------ plan


@unhurried
@given(plan=plans)
def test_every_pair_once_an_epoch_and_every_epoch_as_long(plan):
    fits = np.flatnonzero(plan._bucket >= 0).tolist()
    for epoch in range(3):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        rows = np.concatenate([plan.at(step)[1] for step in steps])
        assert sorted(rows[rows >= 0].tolist()) == fits


@unhurried
@given(plan=plans)
def test_a_batch_holds_its_bucket_only_and_some_real_row(plan):
    for step in range(plan.steps_per_epoch):
        bucket, rows = plan.at(step)
        assert np.any(rows >= 0) and np.all(plan._bucket[rows[rows >= 0]] == bucket)
        assert len(rows) == plan.rows[bucket]


@unhurried
@given(tokens=st.integers(1, 5000), multiple=st.integers(1, 16))
def test_rows_keep_the_budget_and_the_multiple(tokens, multiple):
    plan = Plan([(1, 1)], BUCKETS, tokens, seed=0, multiple=multiple)
    for (source, target), rows in zip(BUCKETS, plan.rows, strict=True):
        pairs = max(1, tokens // (source + target))
        assert rows % multiple == 0 and pairs <= rows < pairs + multiple


@unhurried
@given(lengths=lengths_of, tokens=st.integers(1, 200), multiple=st.integers(2, 16))
def test_how_many_devices_there_are_changes_no_batch_but_its_padding(lengths, tokens, multiple):
    plan, other = (Plan(np.array([(1, 1), *lengths]), BUCKETS, tokens, 0, each) for each in (1, multiple))
    assert other.steps_per_epoch == plan.steps_per_epoch
    for step in range(plan.steps_per_epoch + 3):
        (bucket, rows), (same, padded) = plan.at(step), other.at(step)
        assert bucket == same and rows[rows >= 0].tolist() == padded[padded >= 0].tolist()
        assert np.all(padded[np.sum(padded >= 0) :] == -1)  # padding comes last


@unhurried
@given(plan=plans, steps=st.lists(st.integers(0, 10_000), min_size=1, max_size=6))
def test_at_is_pure_in_whatever_order_it_is_asked(plan, steps):
    first = [plan.at(step) for step in steps]
    again = [plan.at(step) for step in reversed(steps)][::-1]
    for (bucket, rows), (other_bucket, other_rows) in zip(first, again, strict=True):
        assert bucket == other_bucket and np.array_equal(rows, other_rows)


@unhurried
@given(plans, st.integers(0, 60), st.integers(0, 60))
def test_buckets_in_the_order_of_their_first_use(plan, start, steps):
    met = dict.fromkeys(plan.at(step)[0] for step in range(start, start + steps))
    assert plan.first_uses(start, start + steps) == list(met)


def test_rows_that_devices_leave_idle():
    assert Plan([(4, 4)], [(4, 4)], tokens=80, seed=0, multiple=1).idle == 0
    assert Plan([(4, 4)], [(4, 4)], tokens=80, seed=0, multiple=16).idle == 6 / 16  # 10 pairs in 16 rows


@pytest.mark.parametrize("former, last", [(False, [[2, 0], [1, -1]]), (True, [[1, -1], [2, 0]])])
def test_the_worked_example_of_the_docstring_is_written_in_stone(former, last):
    """A change here changes the order of the data in every recorded experiment; NumPy releases must not change it.

    former: the order of runs that an earlier version began, in which the order of the batches depends on the seed.
    """
    plan = Plan([[2, 2], [3, 3], [2, 3]], buckets=[(4, 4)], tokens=16, seed=0)
    plan.order_by_seed = former
    assert plan.steps_per_epoch == 2
    assert [plan.at(step)[1].tolist() for step in range(6)] == [[0, 1], [2, -1], [2, 1], [0, -1], *last]


def test_the_bucket_of_a_step_does_not_depend_on_the_seed():
    lengths = np.array([(1, 1)] * 20 + [(8, 8)] * 20)
    plans = [Plan(lengths, [(1, 1), (8, 8)], 16, seed) for seed in (0, 1, -1)]
    buckets = [[plan.at(step)[0] for step in range(3 * plan.steps_per_epoch)] for plan in plans]
    assert buckets[0] == buckets[1] == buckets[2]
    assert len({tuple(int(plan.at(step)[1][0]) for step in range(9)) for plan in plans}) == 3


def test_epochs_and_seeds_have_their_own_order():
    lengths = np.ones((50, 2), int)
    orders = [
        np.concatenate([plan.at(epoch * plan.steps_per_epoch + k)[1] for k in range(plan.steps_per_epoch)])
        for plan in (Plan(lengths, [(1, 1)], 10, seed) for seed in (0, 1, -1))
        for epoch in range(3)
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 9


def test_buckets_are_mixed_over_an_epoch():
    lengths = np.array([(1, 1)] * 200 + [(8, 8)] * 200)
    plan = Plan(lengths, [(1, 1), (8, 8)], 16, seed=0)
    order = [plan.at(step)[0] for step in range(plan.steps_per_epoch)]
    assert order.count(0) == 25 and order.count(1) == 200
    assert 5 <= order[:112].count(0) <= 20


def test_threads_may_ask_at_once():
    lengths = np.ones((300, 2), int)
    alone, shared = (Plan(lengths, [(1, 1)], 8, seed=5) for _ in range(2))
    steps = [int(step) for step in np.random.default_rng(0).integers(0, 6 * alone.steps_per_epoch, 400)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shared.at, steps))
    assert all(np.array_equal(alone.at(step)[1], rows) for step, (_, rows) in zip(steps, found, strict=True))


def test_threads_that_need_the_same_epoch_make_it_once(monkeypatch):
    plan = Plan(np.ones((300, 2), int), [(1, 1)], 8, seed=5)
    make_epoch, made = plan._make_epoch, []

    def slow_make_epoch(number):
        made.append(number)
        time.sleep(0.05)  # long enough for every thread to enter
        return make_epoch(number)

    monkeypatch.setattr(plan, "_make_epoch", slow_make_epoch)
    boundary = plan.steps_per_epoch  # steps of two epochs alternate
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(plan.at, [boundary - 1, boundary] * 8))
    assert sorted(made) == [0, 1]


def test_a_plan_cannot_be_scribbled_on():
    plan = some_plan(some_pairs())
    with pytest.raises(ValueError, match="read-only"):
        plan.at(0)[1][0] = 7


def test_nothing_to_plan_is_refused():
    with pytest.raises(UserError, match=r"^there are no examples to train on: check data$"):
        Plan(np.zeros((0, 2), int), BUCKETS, 48, 0)
    with pytest.raises(UserError) as caught:
        Plan([(30, 9), (9, 2)], BUCKETS, 48, 0)
    assert str(caught.value) == (
        "none of 2 examples fits in data.buckets, the largest of which is (8, 16): "
        "the shortest has lengths (9, 2); add a larger bucket"
    )


# --------------------------------------------------------------------------------------- batches


def test_a_batch_holds_what_the_plan_says():
    pairs = some_pairs()
    plan = some_plan(pairs)
    for step in range(plan.steps_per_epoch):
        bucket, rows = plan.at(step)
        batch = make_batch(pairs, plan, step)
        assert {name: value.dtype for name, value in batch.items()} == dict.fromkeys(
            ("source", "target", "example"), np.int32
        )
        assert batch["source"].shape == (len(rows), BUCKETS[bucket][0])
        assert batch["target"].shape == (len(rows), BUCKETS[bucket][1])
        for row, source, target, example in zip(rows, batch["source"], batch["target"], batch["example"], strict=True):
            if row < 0:
                assert example == -1 and not source.any() and not target.any()
            else:
                assert example == row
                assert LETTERS.decode(source) == "abcdefg"[: row % 7 + 1] and source.tolist().count(EOS) == 1
                assert LETTERS.decode(target) == "jihgf"[: row % 5 + 1] and target.tolist().count(EOS) == 1


@pytest.mark.parametrize("count", [2, 4])
def test_how_many_processes_share_a_batch_changes_no_row_of_it(count):
    pairs = some_pairs()
    plan = some_plan(pairs, multiple=4)
    for step in range(plan.steps_per_epoch + 2):
        shares = [make_batch(pairs, plan, step, [index], count) for index in range(count)]
        joined = {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}
        assert equal(joined, make_batch(pairs, plan, step))


def test_rows_that_do_not_divide_are_refused():
    pairs = some_pairs()
    with pytest.raises(UserError, match="cannot be split evenly into 3 shards: plan it with a multiple of 3"):
        make_batch(pairs, some_plan(pairs, tokens=1), 0, [0], 3)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_stream_started_half_way_goes_on_with_the_same_batches(prefetch):
    pairs = some_pairs()
    whole = list(stream(pairs, some_plan(pairs), 0, 23, prefetch=prefetch))
    assert [step for step, _ in whole] == list(range(23)) and some_plan(pairs).steps_per_epoch < 23
    resumed = list(stream(pairs, some_plan(pairs), 9, 23, prefetch=prefetch))
    assert [step for step, _ in resumed] == list(range(9, 23))
    assert all(equal(left, right) for (_, left), (_, right) in zip(whole[9:], resumed, strict=True))
    assert all(equal(batch, make_batch(pairs, some_plan(pairs), step)) for step, batch in whole)
    assert list(stream(pairs, some_plan(pairs), 5, 5)) == []


def test_a_stream_gives_each_process_its_share():
    pairs = some_pairs()
    plan = some_plan(pairs)
    for index in range(2):
        for step, batch in stream(pairs, plan, 2, 6, shards=[index], shard_count=2):
            assert equal(batch, make_batch(pairs, plan, step, [index], 2))


def test_a_mistake_in_a_thread_reaches_the_user():
    pairs = some_pairs()
    with pytest.raises(UserError, match="cannot be split evenly into 3 shards"):
        next(stream(pairs, some_plan(pairs), 0, 5, shards=[0], shard_count=3))


def test_the_threads_end_with_the_stream():
    pairs = some_pairs()
    for step, _ in stream(pairs, some_plan(pairs), 0, 10**9):
        if step == 5:
            break
    deadline = time.monotonic() + 10
    while any("grain" in thread.name for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [thread.name for thread in threading.enumerate() if "grain" in thread.name]


def test_a_program_that_leaves_a_stream_open_ends_in_peace():
    program = (
        "import numpy as np\n"
        "from s2sjax.data import Example, pairs, text\n"
        "from s2sjax.data.batching import batch_plan\n"
        "letters = text.Vocabulary('characters', 'ab')\n"
        "pairs = pairs.encode([Example('ab', ('b',))] * 9, letters, letters)\n"
        "open_stream = batch_plan.stream(pairs, batch_plan.Plan(pairs.lengths, [(4, 4)], 16, 0), 0, 10**9)\n"
        "import sys\n"
        "assert 'grain' in sys.modules, 'with the first batch, other threads may be importing'\n"
        "print(next(open_stream)[0], next(open_stream)[0])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")


# ------------------------------------------------------------------------------------ evaluation


@unhurried
@given(lengths=st.lists(st.integers(0, 40), max_size=40), rows=st.integers(1, 7))
def test_every_source_is_decoded_once_and_whole(lengths, rows):
    sources = [[4 + n % 10] * length for n, length in enumerate(lengths)]
    seen = []
    for indices, source in evaluation_batches(sources, buckets=(12, 6, 12), rows=rows):
        assert source.shape[0] == len(indices) and source.dtype == np.int32
        assert len(indices) == 1 or source.size <= rows * 12  # bounded by tokens
        assert source.shape[1] in (6, 12, 16, 32, 64)
        for index, row in zip(indices, source, strict=True):
            expected = [*sources[index], EOS] if index >= 0 else []
            assert row.tolist() == expected + [PAD] * (source.shape[1] - len(expected))
        seen += indices[indices >= 0].tolist()
    assert sorted(seen) == list(range(len(sources)))


def test_evaluation_goes_from_short_to_long_in_few_shapes():
    sources = [[5] * length for length in (11, 5, 15, 0, 16, 2)]  # with <eos>: 12 6 16 1 17 3
    found = [(indices.tolist(), source.shape) for indices, source in evaluation_batches(sources, (6, 12), rows=2)]
    assert found == [
        ([3, 5], (2, 6)),
        ([1, -1], (2, 6)),
        ([0], (1, 12)),  # one row is enough for one source
        ([2], (1, 16)),  # longer than every bucket: the next power of two
        ([4], (1, 32)),
    ]


def test_a_batch_is_bounded_by_tokens_and_by_what_is_there():
    def shapes(given, **options):
        found = evaluation_batches([[5] * (length - 1) for length in given], (8, 16), **{"rows": 16} | options)
        return [source.shape for _, source in found]

    assert shapes([16] * 16 + [32] * 8 + [100, 4000]) == [(16, 16), (8, 32), (1, 128), (1, 4096)]
    assert [shapes([8] * n) for n in (1, 3, 5, 17)] == [[(1, 8)], [(4, 8)], [(16, 8)], [(16, 8)] * 2]
    assert shapes([8] * 17 + [64] * 9, max_queue=8) == [(32, 8), (16, 64)]  # slots of 16, and of 4
    assert shapes([8, 64], multiple=4) == [(4, 8), (4, 64)]  # a row for each of four devices
    assert shapes([3, 5], lengths=np.array([16, 32])) == [(1, 16), (1, 32)]  # for example, of the targets
    few = [8] * 10 + [16] * 3 + [32, 64]  # 80 tokens of padding take all of width 8 to 16; 208 all of these to 32
    assert shapes(few, spare=47) == [(16, 8), (4, 16), (1, 32), (1, 64)]
    assert shapes(few, spare=79) == [(16, 8), (4, 32), (1, 64)]
    assert shapes(few, spare=80) == [(16, 16), (1, 32), (1, 64)]
    assert shapes(few, spare=10**6) == [(8, 32), (8, 32), (1, 64)]  # at most twice the last bucket
    assert (rows_that_fit(16, 32, 64), rows_that_fit(128, 32, 64), rows_that_fit(128, 32, 64, 12)) == (64, 16, 12)


def test_a_bucket_joins_the_next_where_that_adds_little_padding():
    lengths = np.array([(2, 2)] * 5 + [(6, 2)] * 2 + [(2, 7)] + [(99, 9)])
    buckets = [(4, 4), (6, 6), (8, 8)]
    assert joined_buckets(lengths, buckets, 3) == buckets
    assert joined_buckets(lengths, buckets, 8) == [(4, 4), (8, 8)]
    assert joined_buckets(lengths, buckets, 20) == [(6, 6), (8, 8)]  # five rows by four tokens, then seven by four
    assert joined_buckets(lengths, buckets, 28) == [(8, 8)]
    assert joined_buckets(lengths, [(4, 8), (8, 4)], 10**6) == [(4, 8), (8, 4)], "a longer source, a shorter target"


def test_no_rows_no_evaluation():
    with pytest.raises(UserError, match=r"^evaluate\.batch_size is 0: it must be at least 1$"):
        next(evaluation_batches([[4]], (8,), 0))


def test_padding_alone_does_not_go_beyond_what_a_model_can_address():
    assert [round_length(n) for n in (1, 5, 8, 9)] == [1, 8, 8, 16]
    assert [round_length(n, max_length=6) for n in (3, 5, 6, 7)] == [4, 6, 6, 8]
    shapes = [source.shape for _, source in evaluation_batches([[4] * 4, [4] * 6], (3,), rows=1, max_length=6)]
    assert shapes == [(1, 6), (1, 8)]  # five tokens with <eos>, and seven
