"""Only regular files of a known size below one folder are read; all other paths get the same error."""

import base64
import io
import os
import tracemalloc

import numpy as np
import pytest

from s2sjax.data.signals import audio
from s2sjax.errors import UserError
from s2sjax.serve import served_files
from s2sjax.tasks.captioning import captioned_pictures

soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.wav").write_bytes(b"sound")
    (inside / "sub" / "b.wav").write_bytes(b"more")
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "out").symlink_to(tmp_path / "secret")
    (inside / "again").symlink_to(inside / "a.wav")
    (inside / "up").symlink_to(tmp_path)
    os.mkfifo(inside / "fifo")
    with open(inside / "huge", "wb") as file:
        file.truncate(10**12)  # it has no bytes on the disk
    return inside


def test_regular_files_below_the_folder_are_read(folder, tmp_path):
    found = served_files.Files(folder)
    assert (found.read("a.wav", ""), found.read("sub/b.wav", "")) == (b"sound", b"more")
    (tmp_path / "link").symlink_to(folder)
    assert (
        served_files.Files(tmp_path / "link").read("a.wav", "") == b"sound"
    )  # the folder that the user names may be a link
    with pytest.raises(UserError, match="--files nowhere is not a folder"):
        served_files.Files("nowhere")


def test_everything_else_gets_one_answer_and_nothing_is_read(folder):
    found = served_files.Files(folder)
    names = [
        "/dev/zero", "/etc/passwd", "../secret", "sub/../a.wav", "sub/../../secret", "out", "again", "up/secret",
        "up/inside/a.wav", "fifo", "huge", "sub", "", ".", "..", "/", "a.wav/", "//a.wav", "./a.wav", "nothing",
        "nothing/there", "a.wav/x", "a\0b", "x" * 5000, str(folder / "a.wav"),
    ]  # fmt: skip
    opened = len(os.listdir("/dev/fd"))
    tracemalloc.start()
    answers = set()
    for name in names:
        with pytest.raises(UserError) as error:
            found.read(name, "lines[0]")
        answers.add(str(error.value))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(answers) == 1 and "is not a file" in answers.pop()
    assert most < 1_000_000 and len(os.listdir("/dev/fd")) == opened


def test_contents_in_base64():
    assert served_files.sent(base64.b64encode(b"sound").decode(), "files[0]") == b"sound"
    for wrong in ("c291bmQ", "c291\nbmQ=", "é", "!" * 8, None, 3):
        with pytest.raises(UserError, match=r"^files\[0\] is not base64"):
            served_files.sent(wrong, "files[0]")


def test_a_small_file_that_stands_for_hours_is_not_decoded():
    """A FLAC file of silence, and a picture of one color, are a thousandth as large as their decoded contents."""
    rng, content = np.random.default_rng(0), io.BytesIO()
    samples = np.zeros(8_000_000, np.float32)
    samples[:1000] = rng.uniform(-0.5, 0.5, 1000)
    soundfile.write(content, samples, 8000, format="FLAC")
    settings, sound = audio.LogMel(), content.getvalue()
    assert len(sound) < 100_000
    tracemalloc.start()
    with pytest.raises(UserError, match=r"^files\[0\] has 8,000,000 samples, at most 80,000 are read: shorten it"):
        audio.read("files[0]", settings, content=sound, most=80_000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert len(audio.read("files[0]", settings, content=sound, most=8_000_000)) == 8_000_000
    image = pytest.importorskip("PIL.Image").new("RGB", (6000, 5000))
    image.save(picture := io.BytesIO(), "PNG")
    with pytest.raises(UserError, match=r"^files\[0\] has more than 25 million pixels: make it smaller"):
        captioned_pictures.Captioned.example_from(
            type("Small", (captioned_pictures.Captioned,), {"size": 8})(), picture.getvalue(), "files[0]"
        )
