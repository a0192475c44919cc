"""The report and the live page in Chromium, for a run in which every text is markup."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from s2sjax import config, tasks
from s2sjax.evaluate import metrics
from s2sjax.report import contents, write
from s2sjax.runs import evaluations, run
from s2sjax.serve import api, server

pytestmark = pytest.mark.slow

HACK = "<img src=x onerror=hacked=1>"
PAIRS = [(f"a{HACK}</script>", f"{HACK} b"), ("<b>b &amp; c", "</li><script>hacked=1</script>"), ("abc", "b a <i>")]
LIMITS = contents.Limits(attention=2, heads=2, trees=1, resamples=100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with several layers and heads, in a folder whose name is also markup."""
    model = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=2, dropout=0.0)
    experiment = tasks.Translation(
        name=f"x{HACK}",
        data=config.Data(
            config.InMemory(train=PAIRS * 4, dev=PAIRS, test=PAIRS), buckets=((48, 48),), batch_tokens=240, prefetch=0,
            target=config.Text("words"),
        ),
        model=model,
        train=config.Train(steps=4, learning_rate=1e-2, warmup_steps=1, evaluate_every=0, save_every=4, log_every=1),
        search=config.Search(beam_size=2, nbest=2, max_length=6),
        evaluate=config.Evaluate(metrics=("wer", "exact"), batch_size=4),
    )  # fmt: skip
    everything = jax.devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: everything[:1])
        patch.setattr(jax, "device_count", lambda *_: 1)
        yield run.train(experiment, tmp_path_factory.mktemp("runs") / f"run {HACK.replace('/', '')}")[0]


def values_of(file: Path) -> dict:
    return json.loads(re.search(r'id="values">(.*?)</script>', file.read_text(encoding="utf-8"), re.S)[1])


@pytest.fixture(scope="module")
def report(trained):
    """A report of the run, and of the same run under another name."""
    trained.evaluate("test")
    file = write.write([trained.folder, trained.folder], limits=LIMITS)
    assert file == trained.folder / "report.html"
    return file


def test_the_report_has_all_sections(report):
    values = values_of(report)
    first = values["runs"][0]
    assert [score["label"] for score in first["scores"]] == ["WER", "exact"]
    assert [curve["panel"] for curve in first["curves"]] == ["loss"]
    assert first["speed"][0][0] == "training speed (median)"
    assert values["comparisons"]["1"]["rows"][0][-1] == "no significant difference"
    examples = values["examples"]
    assert examples["sources"] == [source for source, _ in PAIRS] and examples["edits"][0]
    views = examples["views"][0]
    assert len(views["attention"]) == 2 and len(views["trees"]) == 1
    assert {(view["layers"], view["heads"]) for view in views["attention"].values()} == {(2, 2)}
    assert [*views["heads"]["views"]] == ["cross", "encoder", "decoder"]
    assert any(name == "model.heads" and set(rest) == {"2"} for name, *rest in values["fields"])


def test_markup_is_shown_as_text_and_no_request_is_made(report, browser):
    browser.open(report.as_uri())
    browser.run("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
    browser.wait_for("document.querySelectorAll('.attention').length >= 2 && document.querySelector('.tree')")
    for select in ("layer", "head"):
        line = f"[...document.querySelectorAll('label')].find((each) => each.textContent.startsWith('{select} '))"
        browser.run(
            f"{line}.firstElementChild.value = '1'; {line}.firstElementChild.dispatchEvent(new Event('change'))"
        )
    browser.run("document.querySelectorAll('button.word, .branch').forEach((each) => each.focus())")
    assert browser.run("typeof hacked") == "undefined" and browser.errors == []
    assert browser.requests == [report.as_uri()]
    assert browser.run("document.querySelectorAll('img, script:not([type])').length") == 1  # the program itself
    shown = browser.run("document.body.innerText")
    assert all(source in shown for source, _ in PAIRS) and HACK in browser.run("document.title")
    maps = [view for each in values_of(report)["examples"]["views"] for view in each["heads"]["views"].values()]
    count = sum(view["layers"] * view["heads"] for view in maps)
    assert browser.run("document.querySelectorAll('#heads .heads button canvas').length") == count


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen_and_follows_its_color_scheme(report, browser, width, dark):
    browser.resize(width, dark=dark)
    browser.open(report.as_uri())
    browser.run("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
    browser.run("document.querySelector('select option').textContent = 'a metric with a long name '.repeat(3)")
    assert browser.run("document.documentElement.scrollWidth") <= width
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_the_weights_of_a_word_can_be_reached_with_the_keyboard(report, browser):
    browser.resize(1200)
    browser.open(report.as_uri())
    browser.run("document.querySelector('summary').focus()")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.attention .words')")
    while not browser.run("document.activeElement.matches('.word')"):
        browser.press("Tab")
    browser.press("ArrowRight")
    assert browser.run("[...document.activeElement.parentNode.children].indexOf(document.activeElement)") == 1
    assert browser.run("document.querySelector('.attention .readout').textContent").startswith("source ")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_ten_thousand_examples_are_shown_in_pages(trained, report, browser, tmp_path):
    rows = [(f"source {n}", f"w{n} a b" if n % 3 else f"w{n} a", f"w{n} a b") for n in range(10_000)]
    results = metrics.score(["wer"], [row[1] for row in rows], [(row[2],) for row in rows])
    records = [{"source": source, "hypothesis": output, "references": [right]} for source, output, right in rows]
    made = evaluations.make(trained.folder, "dev", 4, results)
    many = evaluations.write(made, records, results)
    browser.open(write.write([many.path], tmp_path / "many.html", limits=contents.Limits(0, 0, 0, 100)).as_uri())
    where = "document.querySelector('.examples').previousSibling.textContent"
    assert "page 1 of 400, 10,000 of 10,000 examples" in browser.run(where)
    assert browser.run("document.querySelectorAll('.examples > li').length") == 25
    browser.run("document.querySelectorAll('#outputs button')[1].click()")
    assert "page 2 of 400" in browser.run(where)
    find_box = "document.querySelector('#outputs input[type=search]')"
    browser.run(f"{find_box}.value = 'SOURCE 9999'; {find_box}.dispatchEvent(new Event('input'))")
    browser.wait_for(f"{where}.includes('1 of 10,000 examples')")
    assert browser.run("document.querySelector('.examples del').textContent") == "b"


def test_live_input_shows_output_nbest_attention_and_tree(trained, browser):
    service = api.Service(trained)
    found = server.Server(service, "127.0.0.1", 0)
    service.engine.start()
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        browser.errors.clear()
        browser.open(found.url)
        box = "document.querySelector('textarea')"
        browser.run(f"{box}.value = {PAIRS[0][0]!r}; {box}.dispatchEvent(new Event('input'))")
        browser.wait_for("document.querySelector('.tree')")
        assert browser.run("document.querySelectorAll('.nbest button').length") == 2
        browser.run("document.querySelectorAll('.nbest button')[1].click()")
        assert browser.run("document.querySelectorAll('.nbest button')[1].getAttribute('aria-pressed')") == "true"
        assert browser.run("document.querySelectorAll('.attention select').length") == 2
        assert browser.run("document.querySelector('.words h4, h4').textContent") == "source"
        menu = "[...document.querySelectorAll('select')].find((each) => each.value === 'cross')"
        browser.run(f"const menu = {menu}; menu.value = 'decoder'; menu.dispatchEvent(new Event('change'))")
        assert browser.run("document.querySelector('h4').textContent") == "decoder input, attended to"
        assert browser.run("document.querySelectorAll('.attention .word')[0].textContent").startswith("<sos>")
        assert browser.run("document.querySelector('#output').textContent") == service.run.decode(PAIRS[0][0])
        assert browser.run("typeof hacked") == "undefined" and browser.errors == []
        reply = service.decode({"lines": ["abc", ""], "nbest": 2, "alignment": True}).result()["outputs"]
        assert [each["text"] for each in reply] == service.run.decode(["abc", ""])
        assert [s for s, _ in reply[0]["alignment"]] and reply[1]["alignment"] == []
        assert len(reply[0]["nbest"]) == 2 and not reply[0]["unknown"]
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
        service.engine.close()


def test_a_run_that_reads_files_has_a_button_to_choose_one(browser):
    """The page waits while programs are compiled, sends the file in base64, and shows the answer."""
    asked = []

    class Pictures:
        run, why, translates, most_bytes = SimpleNamespace(folder=Path("runs/pictures")), [], False, 1_000_000

        def about(self):
            return {"run": "runs/pictures", "model": "M", "task": "Captioning", "step": 1, "settings": "", "nbest": 1,
                    "files": "JPEG or PNG", "most_bytes": 9}  # fmt: skip

        def health(self):
            return {"status": "ok"}

        def decode(self, request):
            asked.append(request)
            if len(asked) == 1:
                raise api.Warming("1 of 2 are ready")
            return {"outputs": [{"text": "a red square"}]}

        explain = decode

    found = server.Server(Pictures(), "127.0.0.1", 0)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        browser.errors.clear()
        browser.open(found.url)
        choose = (
            "(bytes) => { const t = new DataTransfer(); t.items.add(new File([new Uint8Array(bytes)], 'a.png'));"
            " const input = document.querySelector('input[type=file]'); input.files = t.files;"
            " input.dispatchEvent(new Event('change')) }"
        )
        browser.run(f"({choose})([1, 2, 255])")
        browser.wait_for("document.querySelector('#output')")
        assert browser.run("document.querySelector('#output').textContent") == "a red square"
        assert asked == [{"files": ["AQL/"]}] * 2
        browser.run(f"({choose})([0,0,0,0,0,0,0,0,0,0])")
        browser.wait_for("document.querySelector('.error')")
        error = browser.run("document.querySelector('.error').textContent")
        assert error == "the file has 10 bytes: choose one of at most 9 bytes"
        assert len(asked) == 2
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
