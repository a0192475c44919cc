"""The result of a sweep, read from its folder: a row for each combination of settings, over its seeds.

SWEEP/sweep.json    the settings of each member, {"members": {"seed=0,model.dropout=0.1": {"seed": 0, ...}, ...}, and
                    the step after which --halving has dropped some: "dropped": {"seed=0,model.dropout=0.1": 500}}
SWEEP/NAME          the run folder of each member: see folder.py

A row has the mean and the standard deviation of each metric over its members that are done, and the p-value of its
difference from the best row: by a permutation test over seeds, or over examples if there is one seed (significance.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from s2sjax import config
from s2sjax.data.examples import SPLITS
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics import significance
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.runs import evaluations, folder
from s2sjax.runs.comparison import Comparison
from s2sjax.runs.evaluations import Evaluation
from s2sjax.runs.folder import SWEEP
from s2sjax.runs.table_formats import Bold, ResultTable
from s2sjax.training.run_log import METRICS, NONFINITE, read_lines

SEED = "seed"
RESAMPLES = 1000
MOST_NAMES = 10
"""maximal number of members that a remark names"""
Status = Literal["done", "unfinished", "diverged", "dropped", "missing"]


class Member(NamedTuple):
    """One training of a sweep."""

    name: str
    settings: dict[str, Any]
    """the swept settings, by dotted name"""
    folder: Path
    status: Status
    """done: trained to its end; unfinished: not yet; diverged: stopped by losses that are not finite; dropped: stopped
    because others were better; missing: not started"""


class Sweep(NamedTuple):
    """A sweep, as found in its folder."""

    folder: Path
    members: list[Member]

    @property
    def swept(self) -> list[str]:
        """The settings that differ among members, without the seed."""
        names = dict.fromkeys(name for member in self.members for name in member.settings if name != SEED)
        values = {name: {_key(member.settings.get(name)) for member in self.members} for name in names}
        return [name for name, found in values.items() if len(found) > 1]

    def label(self, settings: Mapping[str, Any]) -> str:
        """Names a combination by the settings that differ: "learning_rate 0.001, dropout 0.1"."""
        last = [name.rpartition(".")[2] for name in self.swept]
        short = {name: end if last.count(end) == 1 else name for name, end in zip(self.swept, last)}
        return ", ".join(f"{short[name]} {shown(settings.get(name))}" for name in self.swept) or self.folder.name


def is_sweep(path: str | Path) -> bool:
    return (config.as_path(path) / SWEEP).is_file()


def sweep_among(paths: Sequence[str | Path]) -> str | Path | None:
    """The sweep, if that is what a user names; None for runs. Raises if it is not the only folder."""
    sweep = next(filter(is_sweep, paths), None)
    if sweep and len(paths) > 1:
        raise UserError(
            f"{sweep} is a sweep: name it alone, or name its runs, {str(sweep).rstrip('/')}/*/, beside others"
        )
    return sweep


def read_page(path: Path) -> dict[str, Any]:
    """The content of sweep.json: the settings of the members, and the steps of those that were dropped, by name."""
    file = path / SWEEP
    if not file.is_file():
        raise UserError(f"{path} is not a sweep (it has no {SWEEP}): name a folder that s2sjax sweep has written")
    try:
        page = json.loads(file.read_text(encoding="utf-8"))
        members = {str(name): dict(settings) for name, settings in page["members"].items()}
        dropped = {str(name): int(step) for name, step in page.get("dropped", {}).items()}
        if not members:
            raise ValueError("it has no members")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} cannot be read ({what}): copy it again from where the sweep was made") from None
    return page | {"members": members} | ({"dropped": dropped} if dropped else {})


def read(path: str | Path) -> Sweep:
    """Reads the members of the sweep in a folder."""
    path = config.as_path(path)
    page = read_page(path)
    members, dropped = page["members"], page.get("dropped", {})
    pages = {name: folder.flat(folder.read_config(path / name).get("experiment", {})) for name in members}
    swept = dict.fromkeys(setting for settings in members.values() for setting in settings)
    for name, settings in members.items():  # a member of an earlier sweep, which did not vary this setting, has it too
        settings |= {each: pages[name][each] for each in swept if each not in settings and each in pages[name]}
    return Sweep(path, [
        Member(name, settings, path / name, _status(path / name, pages[name], name in dropped))
        for name, settings in members.items()
    ])  # fmt: skip


def _status(run: Path, page: Mapping[str, Any], dropped: bool) -> Status:
    """The status of a run. page: the fields of its experiment; empty if it has none."""
    if not page:
        return "missing"
    if has_diverged(run, page.get("train.max_skipped", config.Train().max_skipped)):
        return "diverged"
    logged = max(_steps(run / METRICS), default=0)
    # A run that train.patience stops ends before its last step. It is evaluated when it has ended.
    early = page.get("train.patience", 0) > 0 and any((run / evaluations.FOLDER).glob(f"*/{evaluations.RESULTS}"))
    if early or 0 < page.get("train.steps", 0) <= logged:
        return "done"
    return "dropped" if dropped else "unfinished"


def has_diverged(run: Path, max_skipped: int) -> bool:
    """Whether training has ended because `max_skipped` steps in a row were not finite."""
    logged, skipped = max(_steps(run / METRICS), default=0), _steps(run / NONFINITE)[-max_skipped:]
    in_a_row = bool(skipped) and skipped == list(range(skipped[-1] - max_skipped + 1, skipped[-1] + 1))
    return in_a_row and logged <= skipped[-1]


def _steps(log: Path) -> list[int]:
    return [int(line["step"]) for line in read_lines(log) if isinstance(line, dict) and "step" in line]


# --------------------------------------------------------------------------------------- the table


class Row(NamedTuple):
    """A combination of settings."""

    settings: dict[str, Any]
    """those that differ among the members of the sweep"""
    members: list[Member]
    scored: dict[str, Evaluation]
    """the evaluation of each member that counts"""

    def values(self, metric: str) -> list[float]:
        """The score of each member that counts."""
        return [one.results[metric].value for one in self.scored.values() if metric in one.results]

    def mean(self, metric: str) -> float | None:
        values = self.values(metric)
        return mean(values) if values and all(map(math.isfinite, values)) else None

    def deviation(self, metric: str) -> float | None:
        """The sample standard deviation; None for a single member."""
        values = self.values(metric)
        return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    def by_seed(self, metric: str) -> dict[Any, float]:
        seeds = {member.name: member.settings.get(SEED) for member in self.members}
        return {seeds[name]: one.results[metric].value for name, one in self.scored.items() if metric in one.results}


class Tested(NamedTuple):
    """A test of the difference between a row and the best one."""

    p: float | None
    how: str
    """the test, in words"""


class Summary(NamedTuple):
    """The rows of a sweep, best first, with what a table says."""

    sweep: Sweep
    split: str | None
    metrics: dict[str, MetricResult]
    """one result of each metric, for its label, format and direction; the first decides which row is best"""
    rows: list[Row]
    tests: list[Tested]

    def records(self) -> list[dict[str, Any]]:
        """A dictionary for each row: settings that differ, mean and deviation of each metric, n, p, best."""
        return [
            row.settings
            | {key: value for name in self.metrics
               for key, value in ((name, row.mean(name)), (f"{name}_std", row.deviation(name)))}
            | {"n": len(row.scored), "p": test.p, "best": number == 0 and bool(row.scored)}
            for number, (row, test) in enumerate(zip(self.rows, self.tests))
        ]  # fmt: skip

    def table(self) -> ResultTable:
        """The table to print."""
        tested = ["p"] if len(self.rows) > 1 else []
        records = self.records()
        head = [*self.sweep.swept, *map(heading, self.metrics.values()), "n", *tested]
        cells = [
            [*(shown(record[name]) for name in self.sweep.swept), *self._scores(record), str(record["n"])]
            + ([shown_p(record["p"])] if tested else [])
            for record in records
        ]
        return ResultTable(records, head, cells)

    def _scores(self, record: Mapping[str, Any]) -> Iterator[str]:
        for place, (name, result) in enumerate(self.metrics.items()):
            value, deviation = record[name], record[f"{name}_std"]
            text = "-" if value is None else result.number(value)
            text += "" if deviation is None else f" ± {result.number(deviation)}"
            yield Bold(text) if record["best"] and place == 0 else text

    def logs(self) -> dict[str, list[Path]]:
        """The metrics.jsonl files of each row, by its label: of its members that are done, or of all if none is."""
        found = {}
        for row in self.rows:
            logs = [(member.status, member.folder / METRICS) for member in row.members]
            logs = [(status, log) for status, log in logs if log.exists()]
            done = [log for status, log in logs if status == "done"]
            found[self.sweep.label(row.settings)] = done or [log for _, log in logs]
        return {label: logs for label, logs in found.items() if logs}

    def remarks(self) -> list[str]:
        """Lines that say what the table shows: split, test, members that are left out."""
        members = self.sweep.members
        scored = {name: one for row in self.rows for name, one in row.scored.items()}
        if not self.split:
            lines = ["no run has been evaluated yet"]
        else:
            several = any(len(row.scored) > 1 for row in self.rows)
            over = "mean ± standard deviation over seeds" if several else "one seed each"
            lines = [f"{self.split}, {over}, {len(scored)} of {len(members)} runs; best first"]
        lines += self._tested()
        for status in ("unfinished", "diverged", "dropped", "missing"):
            lines += _named(f"left out, {status}", [member.name for member in members if member.status == status])
        done = [member.name for member in members if member.status == "done" and member.name not in scored]
        lines += _named(f"left out, not evaluated on {self.split or 'any split'}", done)
        for name, result in self.metrics.items():
            strange = [run for run, one in scored.items() if name in one.results and not _is_number(one, name)]
            lines += _named(f"{result.label} is not a number", strange)
        if differ := evaluations.differences(scored.values(), self.sweep.swept):
            lines.append(f"the settings of the evaluations differ: {differ}")
        counts = sorted({result.examples for one in scored.values() for result in one.results.values()})
        if len(counts) > 1:
            lines.append(f"the evaluations have different numbers of examples: {', '.join(map(str, counts))}")
        return lines

    def _tested(self) -> list[str]:
        """A line for each kind of test, which says for which rows if there are several."""
        rows: dict[str, list[str]] = {}
        for row, test in zip(self.rows, self.tests):
            if test.how:
                rows.setdefault(test.how, []).append(self.sweep.label(row.settings))
        listed = lambda labels: "; ".join(labels) if len(labels) < 3 else f"{len(labels)} rows"
        whose = lambda labels: f" of {listed(labels)}" if len(rows) > 1 else ""
        lines = [f"p{whose(labels)}: {how}" for how, labels in rows.items()]
        count = sum(test.p is not None for test in self.tests)
        return [*lines, f"p is not corrected for {count} comparisons"] if count > 1 else lines


def _is_number(one: Evaluation, metric: str) -> bool:
    return math.isfinite(one.results[metric].value)


def _named(what: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    count = f"{len(names)} run{'' if len(names) == 1 else 's'}"
    return [f"{what}: {count}, {' '.join(names[:MOST_NAMES])}{more}"] if names else []


def table(
    path: str | Path, split: str | None = None, metric: str | Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """A dictionary for each combination of settings other than the seed, best first; see `summarize`.

    {"model.dropout": 0.1, "per": 7.93, "per_std": 0.12, "n": 3, "p": 0.25, "best": False}
    """
    return summarize(path, split, metric).records()


def summarize(path: str | Path, split: str | None = None, metric: str | Sequence[str] | None = None) -> Summary:
    """Collects the scores of a sweep from the newest evaluation of each member that is done.

    split: by default that which most members have, test before dev before train. metric: those to show, by default all;
    the first decides which row is best.
    """
    sweep = read(path)
    stored = {member.name: evaluations.read_all(member.folder) for member in sweep.members if member.status == "done"}
    chosen = _split(sweep, [{one.split for one in found} for found in stored.values()], split)
    newest = {name: one for name, found in stored.items() for one in found if one.split == chosen}
    metrics = _metrics(sweep, newest, metric)
    rows: dict[str, Row] = {}
    for member in sweep.members:
        settings = {name: member.settings.get(name) for name in sweep.swept}
        row = rows.setdefault(_key(settings), Row(settings, [], {}))
        row.members.append(member)
        if member.name in newest:
            row.scored[member.name] = newest[member.name]
    if not metrics:
        return Summary(sweep, None, {}, list(rows.values()), [Tested(None, "")] * len(rows))
    main, result = next(iter(metrics.items()))

    def worth(row: Row) -> float:
        value = row.mean(main)
        return -math.inf if value is None else value if result.higher_is_better else -value

    best, *others = sorted(rows.values(), key=worth, reverse=True)
    tests = [Tested(None, ""), *(_test(best, row, main) for row in others)]
    return Summary(sweep, chosen, metrics, [best, *others], tests)


def _split(sweep: Sweep, found: Sequence[set[str]], wanted: str | None) -> str | None:
    counts = {str(split): sum(split in each for each in found) for split in reversed(SPLITS)}  # test, dev, train
    if wanted and not counts.get(wanted):
        has = ", ".join(split for split, count in counts.items() if count) or "nothing"
        raise UserError(
            f"the runs of {sweep.folder} that are done have evaluations of {has}, not {wanted}: evaluate them with "
            f"s2sjax evaluate RUN --split {wanted}"
        )
    most = max(counts, key=counts.__getitem__)
    return wanted or (most if counts[most] else None)


def _metrics(
    sweep: Sweep, newest: Mapping[str, Evaluation], wanted: str | Sequence[str] | None
) -> dict[str, MetricResult]:
    known = {name: result for one in newest.values() for name, result in one.results.items()}
    if not wanted or not known:
        return known
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise UserError(f"the evaluations of {sweep.folder} have no {name}: choose from {', '.join(known)}")
    return {name: known[name] for name in names}


def _test(best: Row, row: Row, metric: str) -> Tested:
    """Tests whether a row differs from the best one."""
    first, second = best.by_seed(metric), row.by_seed(metric)
    common = [seed for seed in first if seed in second]
    if not first or not second:
        return Tested(None, "")
    if len(common) > 1:
        p = significance.paired_permutation([first[seed] for seed in common], [second[seed] for seed in common])
        return Tested(_finite(p), _told("paired by seed", 2 ** len(common), 2, f"{len(common)} seeds"))
    if max(len(first), len(second)) > 1:
        p = significance.permutation([*first.values()], [*second.values()])
        sizes, ways = sorted([len(first), len(second)]), math.comb(len(first) + len(second), len(first))
        least = 2 if sizes[0] == sizes[1] else 1
        return Tested(_finite(p), _told("over different seeds", ways, least, f"{sizes[0]} and {sizes[1]} seeds"))
    how = f"paired bootstrap over examples, {RESAMPLES:,} resamples; one seed cannot tell how seeds differ"
    try:
        one, other = (next(iter(each.scored.values())) for each in (best, row))
        return Tested(_finite(Comparison(one, other, RESAMPLES, [metric])[metric].p), how)
    except UserError as error:
        return Tested(None, f"not tested: {error}")


def _told(which: str, ways: int, least: int, seeds: str) -> str:
    """The permutation test in words. least: number of the ways that are as extreme as the most extreme one."""
    exact = ways <= significance.MOST
    smallest = least / ways if exact else 1 / significance.MOST
    kind = "exact permutation test" if exact else f"permutation test, {significance.MOST:,} draws"
    return f"{kind} against the best, {which}; {seeds} allow no p below {smallest:.3g}"


def _finite(p: float) -> float | None:
    return p if math.isfinite(p) else None


def _key(value: Any) -> str:
    """A setting as a key of dictionaries: it may be a list."""
    return json.dumps(value, sort_keys=True)


def heading(result: MetricResult) -> str:
    return f"{result.label} (%)" if result.format.endswith("%") else result.label


def shown(value: Any) -> str:
    """A setting as a text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def shown_p(p: float | None) -> str:
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001"
