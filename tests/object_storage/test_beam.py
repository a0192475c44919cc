"""Apache Beam reads text in object storage, and prepares it there."""

import pytest

from s2sjax import files
from s2sjax.config import Data, Text, TextFiles
from s2sjax.data import beam_prepare, prepare
from s2sjax.data.corpora import prepared_corpus

pytestmark = pytest.mark.filterwarnings("ignore")  # Beam's
beam = pytest.importorskip(
    "apache_beam", reason="apache-beam is missing: make test-beam installs it", exc_type=ImportError
)


def test_from_bucket_to_bucket_it_is_the_local_folder(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(beam_prepare, "BLOCK", 100)
    settings = Text("subwords", size=20, sample=50), Text("words")
    addresses = []
    for name in ("src", "tgt"):
        text = "".join(f"{name} {'ab' * (n % 7)} {n % 5}\n" for n in range(90))
        (tmp_path / name).write_text(text)
        files.replace_file(files.as_path(f"{bucket}/{name}"), text)
        addresses.append(f"{bucket}/{name}")
    prepare.prepare(Data(TextFiles(train=(str(tmp_path / "src"), str(tmp_path / "tgt"))), *settings),
                    tmp_path / "made", section=32)  # fmt: skip
    made = beam_prepare.prepare(Data(TextFiles(train=tuple(addresses)), *settings), f"{bucket}/made", section=32)
    expected = {str(path.relative_to(tmp_path / "made")): path.read_bytes()
                for path in (tmp_path / "made").rglob("*") if path.is_file()}  # fmt: skip
    assert {name: (made.folder / name).read_bytes() for name in made.folder.files()} == expected
    assert not files.as_path(f"{bucket}/made.beam").exists()
    assert len(prepared_corpus.Records(made.folder)) == 90
