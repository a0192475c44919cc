"""Each converter, on a small upstream file that was made up."""

import gzip
import io
import sys
import zipfile

import pytest

from s2sjax.datasets import convert, table
from s2sjax.errors import UserError


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


RECORDINGS = {"1_theo_0.wav": b"t0", "1_theo_10.wav": b"t10", "1_theo_5.wav": b"t5", "0_jackson_7.wav": b"j7", "x": b""}
NAMES = b"b.jpg\na.jpg\n"
CASES = {
    "gunzip": ([gzip.compress(b"a\n")], b"a\n"),
    "unzip": ([zipped(a=b"1", b=b"2"), "b"], b"2"),
    "sst2": ([b"1 a  good\xc2\xa0film\n0 bad .\n"], b"a good film\t1\nbad .\t0\n"),
    "trec": ([b"DESC:manner How did \xf0 serfdom ?\n"], "How did ð serfdom ?\tDESC\tmanner\n".encode()),
    "snips": ([b"play  it \nstop\n", b"O B-x\nO\n", b"Play\nStop\n"], b"play it\tO B-x\tPlay\nstop\tO\tStop\n"),
    "wnut17": ([b"a\tO\nB\tB-person\n\t\n\nc\tO"], b"a B\tO B-person\nc\tO\n"),
    "conllu": (
        [b"# a\n1-2\tdon't\t_\t_\n1\tdo\tdo\tAUX\t_\n2\tn't\tnot\tPART\t_\n2.1\tx\tx\tX\t_\n\n# b\n1\tB\tb\tX\t_\n\n"],
        b"do n't\tAUX PART\nB\tX\n",
    ),
    "first_rows": ([b"date,OT\r\n1,2\r\n3,4\r\n", 1], b"date,OT\r\n1,2\r\n"),
    "scan": ([b"IN: jump OUT: I_JUMP\nIN: run twice OUT: I_RUN I_RUN\n"], b"jump\tI_JUMP\nrun twice\tI_RUN I_RUN\n"),
    "inflection": ([b"a\tb \tV;PST\r\n\r\nc\td\tN\r\n"], b"a\tb\tV;PST\nc\td\tN\n"),
    "hansards_gold": (
        [b"The  House .\n", "la Chambre é .\n".encode(), b"0001 1 1 S\n0001 2 2 P\n0001 2 1 S\n"],
        b"the house .\tla chambre e .\t0-0 1-0 1?1\n",
    ),
    "fsdd_index": (
        [RECORDINGS, "train"],
        b"path\tspeaker\tdigit\ttake\n0_jackson_7.wav\tjackson\t0\t7\n1_theo_5.wav\ttheo\t1\t5\n"
        b"1_theo_10.wav\ttheo\t1\t10\n",
    ),
    "flickr8k_captions": (
        [b"a.jpg#0\tA dog .\nb.jpg#0\tA cat .\na.jpg#1\tDogs\tall .\nc.jpg#0\tnone\n", NAMES],
        b"a.jpg\tA dog .\na.jpg\tDogs\tall .\nb.jpg\tA cat .\n",
    ),
    "pendigits": (
        [b"name,x1,...\nr1,0,0\nr2,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,7\nr3,0\n", 2, 2],
        b"7\t1 2\t3 4\t5 6\t7 8\t9 10\t11 12\t13 14\t15 16\n",
    ),
    "japanese_vowels": ([b"@x 1\n@data\n1.0,2.0:3,4:9\n5:6:1\n"], b"9\t1.0 3\t2.0 4\n1\t5 6\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_converter(name):
    given, expected = CASES[name]
    assert convert.CONVERTERS[name](*given) == expected


def test_every_converter_is_tested_and_used():
    elsewhere = {"compress", "tatoeba", "hansards_train", "fsdd_zip", "flickr8k_photo", "flickr8k_zip"}
    assert set(CASES) | elsewhere == set(convert.CONVERTERS)
    sets = table.all_sets().values()
    used = {file.convert for each in sets for file in each.files} | {
        s.each for each in sets for s in table.sources_of(each.files)
    }
    assert used - {""} == set(convert.CONVERTERS) - {"unzip"}  # which is for sets of users


def test_a_gz_file_has_no_date():
    packed = convert.compress(b"abc")
    assert gzip.decompress(packed) == b"abc" and packed[4:8] == bytes(4)


def test_the_parts_of_tatoeba_share_no_sentence():
    """Neither on the English side, with other case or punctuation, nor on the other one."""
    numbered = [(f"Sentence {n}.", f"Satz {n}.") for n in range(400)]
    text = "".join(
        f"{a}\t{b}\tCC-BY\n" for a, b in [*numbered, numbered[0], *((f"Other {n}!", "Satz 1") for n in range(99))]
    )
    train, dev = (
        [line.split("\t") for line in convert.tatoeba(text.encode(), "deu.txt", part).decode().splitlines()]
        for part in ("train", "dev")
    )
    assert dev and all(len(pair) == 2 for pair in train + dev)
    assert len({tuple(pair) for pair in train}) == len(train)
    key = lambda text: text.lower().strip(".!")
    for side in (0, 1):
        assert not {key(pair[side]) for pair in train} & {key(pair[side]) for pair in dev}
    archive = zipped(**{"deu.txt": text.encode()})
    assert convert.tatoeba(archive, "deu.txt", "dev") == convert.tatoeba(text.encode(), "", "dev")


def test_the_debates_are_tokenised_like_the_gold_sentences():
    debates = {
        "a.e": b"Mr. Smith's 2.5% isn't it?\nb\n\n\nb",
        "a.f": b"l'avis des gens aujourd'hui, qu'il va au sud.\nb\n\nc\nb",
    }
    lines = gzip.decompress(convert.hansards_train(debates)).decode().splitlines()
    assert lines == [
        "mr. smith 's 2.5 % isn't it ?\tle avis de les gens aujourd' hui , que il va a le sud .", "b\tb",
    ]  # fmt: skip


def test_recordings_of_a_part_in_one_archive():
    with zipfile.ZipFile(io.BytesIO(convert.fsdd_zip(RECORDINGS, "test"))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"1_theo_0.wav": b"t0"}
    assert convert.fsdd_zip(RECORDINGS, "train") == convert.fsdd_zip(dict(reversed(RECORDINGS.items())), "train")


def test_photos_become_small_squares():
    image = pytest.importorskip("PIL.Image", reason="needs the extra pictures")
    out = io.BytesIO()
    wide = image.new("RGB", (300, 200), (255, 0, 0))
    wide.paste((0, 0, 255), (50, 0, 250, 200))  # the square in the middle
    wide.save(out, "PNG")
    small = image.open(io.BytesIO(convert.flickr8k_photo(out.getvalue())))
    assert (small.size, small.format) == ((128, 128), "JPEG")
    assert all(blue > 200 > 50 > red for red, _, blue in (small.getpixel((x, 64)) for x in (3, 64, 124)))
    packed = convert.flickr8k_zip({"a.jpg": b"1", "b.jpg": b"2", "c.jpg": b"3"}, NAMES)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.namelist() == ["a.jpg", "b.jpg"] and archive.read("b.jpg") == b"2"


def test_a_missing_package_is_named_before_anything_is_downloaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install pillow"):
        convert.check_packages("flickr8k_photo")
    convert.check_packages("")
