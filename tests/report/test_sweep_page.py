"""The report of a sweep: its values, and the page in Chromium."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import sweeps

from s2sjax.report import sweep_contents, write
from s2sjax.runs.sweeps import sweep_results

HACK = "<img src=x onerror=hacked=1>"
RATES, KINDS = [0.001, 0.002, 0.004, 0.008, 0.016], ["gru", f"{HACK}</script>".replace("/", "|"), "lstm", "rnn"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Twenty combinations, in which names are markup; some members are not done."""
    score = lambda rate, kind, seed: 20 + 900 * rate + 3 * KINDS.index(kind) + seed
    members = [
        ({"seed": seed, "train.learning_rate": rate, "model.cell": kind}, score(rate, kind, seed))
        for rate in RATES for kind in KINDS for seed in (0, 1)
    ]  # fmt: skip
    members[3] = members[3][0], "diverged"
    members[7] = members[7][0], "missing"
    folder = sweeps.make(tmp_path_factory.mktemp("sweeps") / f"s {HACK}", members)
    (folder / sweeps.name_of(members[0][0]) / "report.html").write_text("")
    return folder


@pytest.fixture(scope="module")
def page(sweep) -> Path:
    said: list[str] = []
    file = write.write([sweep], say=said.append)
    assert file == sweep / "report.html" and said == [f"wrote {file} ({file.stat().st_size / 1000:.3g} kB)"]
    return file


def values_of(file: Path) -> dict:
    return json.loads(re.search(r'id="values">(.*?)</script>', file.read_text(encoding="utf-8"), re.S)[1])


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    "values, scale",
    [
        ([1e-3, 1e-2], "log"), ([1e-3, 2e-3], "linear"), ([64, 128, 256], "log"), ([1, 2, 3, 4], "linear"),
        ([0.0, 0.1, 0.3], "linear"), ([0.0, 1.0, 100.0], "linear"), ([True, False], "names"), ([1, None], "names"),
        ([1e-4, 3e-4, 1e-3, 3e-3], "log"), ([-1, 5], "linear"), (["a", 1], "names"), ([5], "linear"),
        (list(np.exp(np.random.default_rng(0).uniform(-9, -4, 20))), "log"),
        (list(np.random.default_rng(0).uniform(0.001, 0.5, 20)), "linear"),
    ],
)  # fmt: skip
def test_an_axis_is_logarithmic_where_values_are_geometric(values, scale):
    assert sweep_contents.scale_of(values) == scale


def test_the_values_of_the_page_are_those_of_the_table(sweep, page):
    values, table = values_of(page), sweep_results.summarize(sweep).table()
    assert values["head"] == table.head and [row["cells"] for row in values["rows"]] == [
        list(row) for row in table.rows
    ]
    assert [row["keys"][2] for row in values["rows"]] == [record["wer"] for record in table.records]
    assert values["settings"][0]["scale"] == "log" and values["settings"][0]["values"] == RATES
    assert values["settings"][1]["labels"] == KINDS and values["metric"] == "WER (%)" and not values["higher"]
    assert {(curve["panel"], curve["dev"]) for curve in values["curves"]} == {("loss", False), ("WER (%)", True)}
    first = next(curve for curve in values["curves"] if curve["panel"] == "loss")
    step, mean, low, high, runs = first["points"][0]
    assert (step, runs) == (1, 2) and low <= mean <= high
    members = {member["name"]: member for member in values["members"]}
    assert len(members) == 40 and [m["status"] for m in members.values() if m["score"] is None] == [
        "diverged",
        "missing",
    ]
    for name, member in members.items():
        settings = json.loads((sweep / "sweep.json").read_text())["members"][name]
        assert [s["labels"][place] for s, place in zip(values["settings"], member["places"])] == [
            sweep_results.shown(settings[s["name"]]) for s in values["settings"]]  # fmt: skip


def test_links_lead_to_reports_or_folders_of_runs(sweep, page, tmp_path):
    elsewhere = write.write([sweep], tmp_path / "deep" / "page.html")
    for file in (page, elsewhere):
        links = {member["status"]: [] for member in values_of(file)["members"]}
        for member in values_of(file)["members"]:
            links[member["status"]].append(member["href"])
        assert links["missing"] == [None] and len(links["done"]) == 38
        assert all((file.parent / unquote(link)).exists() for link in links["done"] + links["diverged"])
        assert sum(link.endswith("/report.html") for link in links["done"]) == 1


def test_a_sweep_without_results_has_a_page(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", [({"seed": 0, "train.steps": n}, "missing") for n in (1, 2)])
    code, out, err = call("report", folder)
    assert (code, err) == (0, "") and out.startswith(f"wrote {folder}/report.html (")
    values = values_of(folder / "report.html")
    assert values["curves"] == [] and values["head"] == ["train.steps", "n", "p"]
    assert "no run has been evaluated yet" in values["remarks"]
    assert "is not an HTML file" in call("report", folder, "--out", "x.png")[2]
    assert "not dev" in call("report", folder, "--split", "dev")[2]


# ----------------------------------------------------------------------------------------- browser


@pytest.mark.slow
def test_the_table_is_sorted_by_a_click_or_a_key_on_its_heading(page, browser):
    browser.resize(1200)
    browser.open(page.as_uri())
    column = "[...document.querySelectorAll('#result tbody tr')].map((row) => row.children[{}].textContent)"
    first = browser.run(column.format(2))
    assert first == [row["cells"][2] for row in values_of(page)["rows"]]
    browser.run("document.querySelectorAll('#result .sort')[0].click()")
    assert browser.run(column.format(0)) == [str(rate) for rate in RATES for _ in KINDS]
    browser.run("document.querySelectorAll('#result .sort')[0].focus()")
    browser.press("Enter")
    assert browser.run(column.format(0)) == [str(rate) for rate in reversed(RATES) for _ in KINDS]
    assert browser.run("document.querySelector('#result th').getAttribute('aria-sort')") == "descending"
    browser.run("document.querySelectorAll('#result .sort')[5].click()")  # p: the best row has none, and is last
    found = browser.run(column.format(5))
    assert found == [*sorted(found[:-1], key=float), ""] and len(set(found)) > 2
    browser.run("document.querySelectorAll('#result .sort')[5].click()")
    assert browser.run(column.format(5)) == [*sorted(found[:-1], key=float, reverse=True), ""]


@pytest.mark.slow
def test_markup_is_text_and_the_charts_show_every_run(page, browser):
    browser.errors.clear()
    browser.open(page.as_uri())
    assert browser.run("typeof hacked") == "undefined" and browser.errors == [] and browser.requests == [page.as_uri()]
    assert browser.run("document.querySelectorAll('img, script:not([type])').length") == 1
    assert HACK in browser.run("document.body.innerText") and HACK in browser.run("document.title")
    count = lambda selector: browser.run(f"document.querySelectorAll({selector!r}).length")
    assert count("#settings .point") == 2 * 38 and count("#settings .mean") == 2
    assert count("#curves polyline") == 2 * 20 and count("#curves .band") == 2 * 18  # two rows have one run
    assert count("#curves .key button") == 20 and count("#runs tbody tr") == 40
    shades = browser.run(
        "[...document.querySelectorAll('.key li')].map((each) => getComputedStyle(each, '::before').borderTopColor)"
    )
    assert len(set(shades)) == 20


@pytest.mark.slow
def test_a_combination_is_emphasised_by_pointing_and_kept_by_a_click(page, browser):
    browser.open(page.as_uri())
    faded = "document.querySelectorAll('#curves .faded').length"
    item = "document.querySelectorAll('.key li')[4]"
    browser.run(f"{item}.dispatchEvent(new Event('pointerenter'))")
    assert (
        browser.run(faded)
        == browser.run("document.querySelectorAll('#curves [data-run]:not([data-run=\"4\"])').length")
        > 0
    )
    browser.run(f"{item}.dispatchEvent(new Event('pointerleave'))")
    assert browser.run(faded) == 0
    browser.run(f"{item}.firstChild.click(); {item}.dispatchEvent(new Event('pointerleave'))")
    assert browser.run(faded) > 0 and browser.run(f"{item}.firstChild.getAttribute('aria-pressed')") == "true"
    browser.run("document.querySelector('#curves figure svg').focus()")
    browser.press("ArrowLeft")
    label = values_of(page)["rows"][4]["label"]
    assert browser.run("document.querySelector('#curves .readout').textContent").startswith(f"step 20: {label} ")
    browser.run(f"{item}.firstChild.click(); {item}.dispatchEvent(new Event('pointerleave'))")
    assert browser.run(faded) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_twenty_combinations_fit_the_screen(page, browser, width, dark):
    browser.resize(width, dark=dark)
    browser.open(page.as_uri())
    assert browser.run("document.documentElement.scrollWidth") <= width
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


@pytest.mark.slow
def test_the_points_of_a_chart_are_one_tab_stop_and_arrow_keys_move(page, browser):
    browser.resize(1200)
    browser.open(page.as_uri())
    assert browser.run("document.querySelectorAll('#settings figure .point[tabindex=\"0\"]').length") == 2
    browser.run("document.querySelector('#settings .point').focus()")
    names = [member["name"] for member in values_of(page)["members"] if member["score"] is not None]
    read = "document.querySelector('#settings .readout').textContent"
    assert browser.run(read).startswith(names[0])
    browser.press("ArrowRight")
    assert browser.run(read).startswith(names[1])
