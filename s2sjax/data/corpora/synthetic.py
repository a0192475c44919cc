"""Synthetic tasks with computed targets, for first tests of a new model.

copy       "dbca"     -> "dbca"
reverse    "dbca"     -> "acbd"
sort       "dbca"     -> "abcd"
addition   "12+345"   -> "357"
dates      "the 3rd of March 2021" -> "2021-03-03"
"""

import random
from collections.abc import Callable
from datetime import date
from string import ascii_lowercase

from s2sjax import config
from s2sjax.data.examples import Example, Split, split_of
from s2sjax.errors import UserError

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

# Every form is unambiguous: the month is a name, or the year comes first. Names come from the tables above and not from
# strftime, whose names depend on the locale. `a` in weekday_a and month_a stands for abbreviated.
DATE_FORMS = (
    "{month} {day}, {year}",
    "{month_a} {day}, {year}",
    "{month} {nth}, {year}",
    "{day} {month} {year}",
    "{day} {month_a} {year}",
    "{day:02}-{month_a}-{year}",
    "the {nth} of {month} {year}",
    "{weekday}, {month} {day}, {year}",
    "{weekday} the {nth} of {month}, {year}",
    "{weekday_a} {day} {month_a} {year}",
    "{year} {month} {day}",
    "{year}/{number:02}/{day:02}",
)

# Fixed, so that more dev examples do not change the train examples.
DEV_PERCENT = TEST_PERCENT = 10
ATTEMPTS = 1000


def make(corpus: config.Synthetic, split: Split) -> list[Example]:
    """The first `corpus.train`, `corpus.dev` or `corpus.test` examples of a split.

    Example i is a pure function of the task (with its length and alphabet), seed, split and i. The hash of a source
    decides its split, and sources of another split are drawn again. So no source is in two splits, but sources can
    repeat within a split of a small task.
    """
    draw, answer = TASKS[corpus.task]
    examples = []
    for index in range(getattr(corpus, split)):
        rng = random.Random(f"{corpus.task}/{corpus.seed}/{split}/{index}")
        for _ in range(ATTEMPTS):
            source, meaning = draw(rng, corpus)
            if split_of(source, DEV_PERCENT, TEST_PERCENT) == split:
                break
        else:
            raise UserError(
                f"data.corpus: {corpus.task} of length {corpus.length} has too few distinct sources for "
                f"{getattr(corpus, split)} {split} examples: raise data.corpus.length"
            )
        examples.append(Example(source, (answer(meaning),)))
    return examples


# ------------------------------------------------------------------------------- letters, numbers


def _draw_letters(rng: random.Random, corpus: config.Synthetic) -> tuple[str, str]:
    """Draws 1 to `length` of the first `alphabet` letters, all lengths equally likely."""
    text = "".join(rng.choices(ascii_lowercase[: corpus.alphabet], k=rng.randint(1, corpus.length)))
    return text, text


def _draw_sum(rng: random.Random, corpus: config.Synthetic) -> tuple[str, tuple[int, int]]:
    """Draws two numbers of 1 to `length` digits, all numbers of digits equally likely, without leading zeros."""
    lengths = (rng.randint(1, corpus.length) for _ in range(2))  # each is drawn just before its number
    left, right = (rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits) for digits in lengths)
    return f"{left}+{right}", (left, right)


# ---------------------------------------------------------------------------------------- dates


def _draw_date(rng: random.Random, corpus: config.Synthetic) -> tuple[str, date]:
    """Draws a day from 1900 to 2099, written in one of `DATE_FORMS`."""
    day = date.fromordinal(rng.randint(date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()))
    return write_date(day, rng.choice(DATE_FORMS)), day


def write_date(day: date, form: str) -> str:
    """Formats a date: date(2021, 3, 3), "the {nth} of {month} {year}" -> "the 3rd of March 2021"."""
    month, weekday = MONTHS[day.month - 1], DAYS[day.weekday()]
    return form.format(
        year=day.year,
        number=day.month,
        month=month,
        month_a=month[:3],
        day=day.day,
        nth=_ordinal(day.day),
        weekday=weekday,
        weekday_a=weekday[:3],
    )


def _ordinal(number: int) -> str:
    """An ordinal: 1st, 2nd, 3rd, 4th ... 11th, 12th, 13th ... 21st."""
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# task -> (draw(rng, corpus) -> source and its meaning, answer(meaning) -> target)
TASKS: dict[str, tuple[Callable, Callable]] = {
    "copy": (_draw_letters, lambda text: text),
    "reverse": (_draw_letters, lambda text: text[::-1]),
    "sort": (_draw_letters, lambda text: "".join(sorted(text))),
    "addition": (_draw_sum, lambda numbers: str(sum(numbers))),
    "dates": (_draw_date, date.isoformat),
}
