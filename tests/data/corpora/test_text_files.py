"""TSV files: errors are one line and name the file and the line."""

import gzip

import pytest

from s2sjax.data.corpora.text_files import BEGIN, Place, lines, parallel_lines, read_tsv
from s2sjax.errors import UserError


def rows(path, content, columns=("text", "label"), **options):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return list(read_tsv(path, columns, **options))


def error_of(*arguments, **options):
    with pytest.raises(UserError) as caught:
        rows(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reading_begins_at_any_line_from_any_byte_before_it(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffgut\r\n\nschön\u2028e\n\ufeff\n\xe9nd\n\xff".encode()[:-2] + b"\xff")
    data = path.read_bytes()
    whole = ["gut", "", "schön\u2028e", "\ufeff", "énd"]
    for byte in range(len(data)):
        before = data[:byte].count(b"\n")
        for line in range(before + 1, 5):
            with pytest.raises(UserError, match="text, line 6: not UTF-8"):
                for number, found in enumerate(lines(path, "x", Place(line, byte, before)), start=line):
                    assert found == whole[number]
    with pytest.raises(UserError, match=r"has 6 lines but .* has 1: line n"):
        (tmp_path / "other").write_text("a")
        path.write_bytes(data[:-1] + b".")
        list(parallel_lines((path, tmp_path / "other"), ("x", "x"), (BEGIN, BEGIN)))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_rows_with_their_lines(tmp_path, name):
    path = tmp_path / name
    found = rows(path, "\ufeffgut\t1\r\nschön\u2028e\t\n".encode())
    assert [row.fields for row in found] == [("gut", "1"), ("schön\u2028e", "")]
    assert [row.where for row in found] == [f"{path}, line 1", f"{path}, line 2"]


def test_further_columns_only_if_announced(tmp_path):
    path = tmp_path / "a.tsv"
    assert rows(path, b"a\t1 2\t3 4\nb\n", ("label",), more="one frame a field")[0].fields == ("a", "1 2", "3 4")
    assert error_of(path, b"a\t1\t2\n") == f"{path}, line 1 has 3 of 2 columns: write text, a tab, label"


def test_faults_of_a_file(tmp_path):
    path = tmp_path / "a.tsv"
    assert error_of(path, b"a\t1\nb\n") == f"{path}, line 2 has 1 of 2 columns: write text, a tab, label"
    assert error_of(path, b"a\t1\n\xff\t2\n") == f"{path}, line 2: not UTF-8: convert the file to UTF-8"
    assert error_of(path, b"") == f"{path} is empty: put examples in it, or change data.folder"
    with pytest.raises(UserError, match=r"cannot be read .*: correct data\.folder"):
        list(read_tsv(tmp_path, ("text",)))
    with pytest.raises(UserError, match=r"~nouser/a\.tsv"):
        list(read_tsv("~nouser/a.tsv", ("text",), "data.folder", "SST-2"))


def test_a_missing_file_names_its_format_and_its_origin(tmp_path):
    with pytest.raises(UserError) as caught:
        list(read_tsv(tmp_path / "no.tsv", ("text", "label"), "data.folder", "SST-2 (Socher et al. 2013)"))
    assert str(caught.value) == (
        f"there is no file {tmp_path / 'no.tsv'} (each line: text, a tab, label) of SST-2 (Socher et al. 2013): "
        "correct data.folder"
    )
