"""The command `s2sjax align`."""

import gzip
import re
from pathlib import Path

import pytest

from s2sjax.align.aligner import MODELS
from s2sjax.align.symmetrize import METHODS

SOURCE = "das haus\ndas buch\n\nein buch\nein haus\n"
TARGET = "the house\nthe book\nthe\na book\na house\n"
LINKS = "0-0 1-1\n0-0 1-1\n\n0-0 1-1\n0-0 1-1\n"
TSV = "".join(f"{s}\t{t}\n" for s, t in zip(SOURCE.splitlines(), TARGET.splitlines()))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with two text files."""
    monkeypatch.chdir(tmp_path)
    Path("s").write_text(SOURCE)
    Path("t").write_text(TARGET)
    return tmp_path


@pytest.fixture
def refused(call, here):
    def command(*arguments) -> str:
        code, out, err = call("align", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err.removeprefix("error: ").removesuffix("\n")

    return command


@pytest.mark.parametrize("name", MODELS)
def test_one_line_of_links_for_each_line(call, here, name):
    code, out, err = call("align", "s", "t", "--model", name, "--no-agree")
    assert (code, out) == (0, LINKS)
    first, second, *_ = err.splitlines()
    assert first == "5 sentence pairs, 8 and 9 words, 12 distinct word pairs"
    assert second == "ibm1 1/5  perplexity 4.00 forward, 4.00 reverse"


def test_a_compressed_tsv_file_and_an_output_file_and_the_error_rate(call, here):
    Path("t.tsv.gz").write_bytes(gzip.compress(TSV.encode()))
    Path("gold").write_text("0-0 1-1\n0-0 1-1\n\n0-0 1?1\n0-0\n")
    code, out, err = call("align", "t.tsv.gz", "--gold", "gold", "--out", "links", "--iterations", 3)
    assert code == 0 and "hmm 3/3" in err and "4/" not in err
    assert Path("links").read_text() == LINKS
    wrote, on, *rows = out.splitlines()
    assert wrote == "wrote links: grow-diag-final-and links of 5 sentence pairs"
    assert on == "on 5 gold sentences:"
    assert [row.split()[0] for row in rows] == ["grow-diag-final-and", "forward", "reverse", *list(METHODS)[:-1]]
    assert rows[0] == "grow-diag-final-and  AER  7.1%  precision  87.5%  recall 100.0%"


def test_gold_sentences_of_their_own_are_learned_from_and_scored(call, here):
    Path("gold").write_text("ein buch\ta book\t0-0 1-1\n")
    Path("more").write_text("das\tthe\nhaus\thouse\tignored\n")
    _, out, err = call("align", "s", "t", "--gold", "gold", "--add", "more", "--direction", "forward")
    assert out == LINKS
    assert err.startswith("8 sentence pairs, ") and "\non 1 gold sentence:\nforward " in err
    assert "AER  0.0%" in err
    Path("gold").write_text("".join(f"{row}\t0-0\n" for row in TSV.splitlines() if row[0] != "\t"))
    Path("same").write_text("".join(f"{row}\n" for row in TSV.splitlines() if row[0] != "\t"))
    assert call("align", "same", "--gold", "gold")[2].startswith("4 sentence pairs, ")  # the same: not twice


def test_wrong_input_is_refused_in_one_line(refused):
    Path("short").write_text("a\n")
    Path("latin").write_bytes("a\ngarçon\n".encode("latin-1"))
    Path("empty").touch()
    Path("blank").write_text("\n\n\n\n\n")
    Path("damaged.gz").write_bytes(b"no")
    Path("tsv").write_text("a\tb\nc\n")
    assert refused("nowhere", "t") == "there is no file nowhere: correct SOURCE"
    assert refused("s", "nowhere") == "there is no file nowhere: correct TARGET"
    assert refused("s", "short") == "s has 5 lines but short has 1: line n of one must translate line n of the other"
    assert refused("latin", "t") == "latin, line 2: not UTF-8: convert the file to UTF-8"
    assert refused("empty", "t") == "empty is empty: put examples in it, or change SOURCE"
    assert refused("damaged.gz", "t").startswith("damaged.gz cannot be read (")
    assert refused(".", "t").startswith(". cannot be read (")
    assert refused("tsv") == "tsv, line 2 has 1 of 2 columns: write source, a tab, target, a tab, anything"
    assert refused("s", "t", "--add", "s").startswith("s, line 1 has 1 of 2 columns")
    assert refused("s", "t", "--gold", "short") == (
        "short, line 1: 'a' is not a link: write 0-1 for a sure and 0?1 for a possible link"
    )
    Path("gold").write_text("0-0\n")
    assert refused("s", "t", "--gold", "gold").startswith("gold has 1 lines, but there are 5 sentence pairs: give ")
    assert refused("s", "t", "--gold", "nowhere") == "there is no file nowhere: correct --gold"


def test_wrong_options_are_refused_before_anything_is_read(refused):
    assert refused() == "the following arguments are required: SOURCE: see s2sjax align --help"
    assert "invalid choice: 'ibm4'" in refused("x", "t", "--model", "ibm4")
    assert "0' is not a whole number that is at least 1" in refused("x", "t", "--iterations", "0")
    both = "--symmetrize joins both directions, and --direction is one of them: leave one of these out"
    assert refused("x", "t", "--symmetrize", "union", "--direction", "forward") == both
    assert refused("s", "t", "--out", "t") == "--out t is also read: name another file"
    assert refused("x", "t", "--out", ".") == "--out . is a folder: name a file"
    assert refused("x", "t", "--out", "no/links").startswith("--out no/links: there is no folder no: make it")
    assert refused("x", "t", "--run", "r", "--model", "hmm").startswith("--model does not apply to the attention of a")
    assert refused("x", "t", "--run", "r", "--no-agree").startswith("--agree does not apply to the attention of a run")
    assert refused("x", "t", "--run", "r", "--symmetrize", "union").startswith("--symmetrize requires both directions")
    assert refused("x", "t", "--beam", "4") == "align has no option --beam: see s2sjax align --help"


def test_text_without_words_cannot_be_aligned(call, here):
    Path("blank").write_text("\n" * 5)
    code, out, err = call("align", "blank", "t")
    assert (code, out) == (2, "")
    assert err.endswith("error: no sentence pair has words on both sides: there is nothing to learn from\n")


def test_the_choices_of_the_command_line_are_those_of_the_package(call):
    text = "".join(call("align", "--help")[1].split())
    assert f"--model{{{','.join(MODELS)}}}" in text
    assert f"--symmetrize{{{','.join(METHODS)}}}" in text


def test_the_program_of_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/alignment.md").read_text(encoding="utf-8")
    (program,) = re.findall("```python\n(.*?)```", page, re.S)
    exec(program, {})
    links, probability, score = capsys.readouterr().out.splitlines()
    assert links == str([{(0, 0), (1, 1)}] * 3)
    assert 0.9 < float(probability) <= 1
    assert score == "AER  0.0%  precision 100.0%  recall 100.0%"
