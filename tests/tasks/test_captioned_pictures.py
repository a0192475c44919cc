"""Reading pictures and captions, and errors."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from s2sjax.data.batching.columns import Columns, Ragged, Shared
from s2sjax.errors import UserError
from s2sjax.tasks.captioning.captioned_pictures import CaptionedFiles, Squares, fingerprint, plain_words, read


def picture(mode: str = "RGB", size: tuple[int, int] = (8, 8), kind: str = "PNG", **options) -> bytes:
    pixels = np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[1], size[0])
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def corpus(tmp_path):
    """Four pictures in train.zip, two in the folder dev."""
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for number in range(4):
            archive.writestr(f"{number}.png", picture(size=(8 + number, 8)))
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / "dev" / f"{number}.jpg").write_bytes(picture("L", kind="JPEG"))
    lines = [f"{number}.png\tA dog's ball , number {number} .\n" for number in range(4) for _ in range(2)]
    (tmp_path / "captions_train.tsv").write_text("".join(lines))
    (tmp_path / "captions_dev.tsv").write_text("0.jpg\tone\n1.jpg\ttwo\n0.jpg\tthree\n")
    return CaptionedFiles(str(tmp_path), size=8, dev_percent=0.0)


def test_pictures_and_captions_are_read_from_a_zip_or_a_folder(corpus):
    train, test = corpus.examples("train"), corpus.examples("test")
    assert [one.captions for one in train] == [(f"a dog's ball number {n}",) * 2 for n in range(4)]
    assert [(one.name, one.captions) for one in test] == [("0.jpg", ("one", "three")), ("1.jpg", ("two",))]
    assert all(one.pixels.shape == (8, 8, 3) and one.pixels.dtype == np.uint8 for one in train + test)
    assert fingerprint(train) == fingerprint(corpus.examples("train")) != fingerprint(test)
    assert corpus.has("test") and not corpus.has("dev")


def test_a_part_of_the_training_pictures_is_dev(corpus):
    held = CaptionedFiles(corpus.folder, size=8, dev_percent=50.0)
    names = [{one.name for one in held.examples(split)} for split in ("train", "dev")]
    assert names[0] | names[1] == {f"{n}.png" for n in range(4)} and not names[0] & names[1]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_other_modes_become_red_green_and_blue(mode, tmp_path):
    (tmp_path / "a.png").write_bytes(picture(mode))
    assert read(tmp_path / "a.png", 8)[0].shape == (8, 8, 3)


def test_a_larger_picture_loses_its_ends_and_becomes_smaller(tmp_path):
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    pixels = read(tmp_path / "wide.png", 8)[0]
    assert pixels.shape == (8, 8, 3) and (pixels == 200).all()


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4] = 250
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(upright).save(tmp_path / "turned.png", exif=exif)
    pixels = read(tmp_path / "turned.png", 8)[0]
    assert (pixels[4:] == 250).all() and (pixels[:4] == 0).all()


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"no picture", "cannot be read (its format is unknown): give a JPEG or PNG file"),
        (b"", "cannot be read (its format is unknown): give a JPEG or PNG file"),
        (picture("L", (40, 40), "JPEG")[:300], "cannot be read ("),
        (picture(size=(8, 4)), "is too small, with 8 x 4 pixels: at least 8 x 8 are needed"),
        (picture("I;16"), "has pixels of mode I;16: convert it to 8-bit RGB"),
        (None, "does not exist: correct the path"),
    ],
    ids=["text", "empty", "truncated", "small", "sixteen-bits", "missing"],
)
def test_bad_pictures_are_refused_with_the_line(content, problem, tmp_path):
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        Squares(size=8).example_of(f"{path}\n", "standard input, line 3")
    assert str(refused.value).startswith(f"standard input, line 3: {path} {problem}")


def test_a_huge_picture_is_refused(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    for side in (1100, 1500):  # Pillow warns about the first and rejects the second
        Image.new("1", (side, side)).save(tmp_path / "a.png")
        with pytest.raises(UserError, match=r"a\.png has more than 1 million pixels: make it smaller"):
            read(tmp_path / "a.png", 8)
    assert not recwarn.list


def test_what_is_transparent_is_white(tmp_path):
    pixels = np.full((8, 8, 4), 50, np.uint8)
    pixels[:4, :, 3], pixels[4:, :, 3] = 0, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = read(tmp_path / "a.png", 8)[0]
    assert (found[:4] == 255).all() and (found[4:] == 50).all()


def test_an_empty_line_is_no_path():
    with pytest.raises(UserError, match="line 1 is empty: write the path of a picture"):
        Squares().example_of(" ", "line 1")


def test_bad_captions_are_refused_with_file_and_line(corpus, tmp_path):
    captions = tmp_path / "captions_train.tsv"
    captions.write_text("0.png\ta dog\n9.png\ta cat\n")
    with pytest.raises(UserError, match=r"captions_train.tsv, line 2: 9.png is not in .*train.zip"):
        corpus.examples("train")
    captions.write_text("0.png\ta dog\n1.png\t . !\n")
    with pytest.raises(UserError, match=r"captions_train.tsv, line 2 has a caption without words"):
        corpus.examples("train")
    captions.write_text("0.png a dog\n")
    with pytest.raises(UserError, match=r"captions_train.tsv, line 1 has 1 of 2 columns"):
        corpus.examples("train")
    captions.unlink()
    with pytest.raises(UserError, match=r"there is no file .*captions_train.tsv .* of Flickr8k"):
        corpus.examples("train")
    captions.write_text("0.png\ta dog\n")
    (tmp_path / "train.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"train.zip cannot be read .* it must be pictures of Flickr8k"):
        corpus.examples("train")


def test_words_are_in_lower_case_without_punctuation():
    assert plain_words('A tri-colored dog\u2019s "ball" , 2 of_them .') == "a tri-colored dog's ball 2 of them"
    assert plain_words("...") == ""


def test_captions_share_their_picture():
    values = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    shared = Shared(values, np.array([0, 1, 1]))
    columns = Columns({"target": Ragged.of_ids([[5], [6], [7]])}, {"picture": shared}, np.arange(3), (3,))
    batch = columns.batch(np.array([2, 0, -1]), (3,))
    np.testing.assert_array_equal(batch["picture"], [values[1], values[0], np.zeros((2, 2))])
    assert batch["picture"].dtype == np.uint8 and shared.values is values
