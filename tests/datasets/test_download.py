"""Downloads from servers that break off, stall, answer with errors or other bytes, or redirect."""

import dataclasses
import errno
import hashlib
import os
import shutil

import pytest
from conftest import refused

from s2sjax.datasets import download as downloads
from s2sjax.errors import UserError

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def check(path) -> str:
    return "" if hashlib.sha256(path.read_bytes()).hexdigest() == DIGEST else "its hash is wrong"


@pytest.fixture
def fetch(host, tmp_path, patience):
    """Downloads CONTENT from the host, or from other addresses, and returns the address that it came from."""
    host.files["/a"] = CONTENT

    def run(*addresses, advance=lambda count: None, patience=patience, unreachable=None, has_hash=True):
        path, accept = tmp_path / "new" / "a", check if has_hash else lambda path: ""
        addresses = addresses or [f"{host.url}/a"]
        found = downloads.download(addresses, path, accept, advance, patience, unreachable, has_hash)
        assert path.read_bytes() == CONTENT and os.listdir(path.parent) == ["a"]
        return found

    return run


def test_a_download_counts_its_bytes(fetch, host, waits):
    counts = []
    assert fetch(advance=counts.append) == f"{host.url}/a"
    assert sum(counts) == len(CONTENT) and not waits
    assert host.requests[0][1]["User-Agent"].startswith("s2sjax/")


def test_a_connection_that_breaks_is_continued(fetch, host, answers, waits):
    host.script["/a"] = [answers.breaks_after(1000), answers.breaks_after(70_000)]
    counts = []
    fetch(advance=counts.append)
    assert [headers.get("Range") for _, headers in host.requests] == [None, "bytes=1000-", "bytes=71000-"]
    assert host.requests[1][1]["If-Range"] == f'"{hashlib.md5(CONTENT).hexdigest()}"'
    assert sum(counts) == len(CONTENT) and waits == [1.0, 1.0]


def test_it_is_continued_by_the_next_process(fetch, host, answers, patience):
    host.script["/a"] = [answers.breaks_after(1000), answers.status(404)]
    with pytest.raises(UserError, match="404"):
        fetch()
    fetch()
    assert host.requests[-1][1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize("second", ["silent", 404, 416, 503])
def test_a_part_survives_other_addresses_that_do_not_have_the_file(fetch, host, other_host, answers, second):
    host.script["/a"] = [answers.breaks_after(1000), answers.status(403)]
    other_host.script["/a"] = [answers.status(second)] * 3
    both = (f"{host.url}/a", "http://127.0.0.1:1/a" if second == "silent" else f"{other_host.url}/a")
    with pytest.raises(UserError, match="403 Forbidden; 127"):
        fetch(*both)
    counts = []
    assert fetch(*both, advance=counts.append) == both[0]
    assert host.requests[-1][1]["Range"] == "bytes=1000-" and sum(counts) == len(CONTENT)


def test_a_part_is_replaced_when_another_address_has_the_file(fetch, host, other_host, answers):
    host.script["/a"] = [answers.breaks_after(1000), answers.status(403)]
    other_host.files["/a"] = CONTENT
    counts = []
    fetch(f"{host.url}/a", f"{other_host.url}/a", advance=counts.append)
    assert "Range" not in other_host.requests[0][1] and sum(counts) == len(CONTENT)


def test_a_short_outage_in_the_middle_does_not_end_a_download(fetch, host, answers, patience, waits, monkeypatch):
    """A proxy that is not there stands for a network that is not there."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def sleep(seconds):
        waits.append(seconds)
        away = len(waits) == 1
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1" if away else "")

    host.script["/a"] = [answers.breaks_after(1000)]
    fetch(patience=dataclasses.replace(patience, sleep=sleep))
    assert waits == [1.0, 2.0] and [headers.get("Range") for _, headers in host.requests] == [None, "bytes=1000-"]


def test_ctrl_c_leaves_a_part_that_is_continued(fetch, host):
    class Stop(Exception):
        pass

    def stop(count):
        if count > 0:
            raise Stop

    with pytest.raises(Stop):
        fetch(advance=stop)
    counts = []
    fetch(advance=counts.append)
    assert host.requests[-1][1]["Range"] == f"bytes={counts[0]}-"
    assert 0 < counts[0] < len(CONTENT) and sum(counts) == len(CONTENT)


def test_a_whole_part_that_was_not_verified_is_not_downloaded_again(fetch, host, tmp_path, answers):
    host.script["/a"] = [answers.breaks_after(1000), answers.status(404)]
    with pytest.raises(UserError):
        fetch()
    (tmp_path / "new/a.partial").write_bytes(CONTENT)
    before = len(host.requests)
    fetch()
    assert len(host.requests) == before


def test_a_stalled_connection_times_out_and_is_continued(fetch, host, answers, patience):
    host.script["/a"] = [answers.stalls_after(500)]
    fetch(patience=dataclasses.replace(patience, timeout=2.0))
    assert host.requests[1][1]["Range"] == "bytes=500-"


def test_a_server_that_never_answers_is_left(fetch, host, answers, patience, waits):
    host.script["/b"] = [answers.stalls_after(0)] * 3
    host.files["/b"] = CONTENT
    assert fetch(f"{host.url}/b", f"{host.url}/a", patience=dataclasses.replace(patience, timeout=1.0)).endswith("/a")
    assert waits[:2] == [1.0, 2.0]


def test_a_server_without_ranges_sends_all_again(fetch, host, answers):
    host.script["/a"] = [answers.breaks_after(1000), answers.ignores_range]
    counts = []
    fetch(advance=counts.append)
    assert host.requests[1][1]["Range"] == "bytes=1000-" and sum(counts) == len(CONTENT)


def test_a_server_that_always_breaks_at_the_same_place_is_left(fetch, host, answers, waits):
    def always(host, handler, content):
        del handler.headers["Range"]
        answers.breaks_after(1000)(host, handler, content)

    host.script["/a"] = [always] * 9
    with pytest.raises(UserError, match=r"the connection broke off after 1,000 of 256,000 bytes, 3 times"):
        fetch()
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize("has_hash", [True, False])
@pytest.mark.parametrize("with_etag", [True, False])
def test_a_file_that_changes_between_two_parts_is_downloaded_again(fetch, host, answers, with_etag, has_hash):
    """With an ETag the server sends all of the new file; without one the hash shows that the parts do not fit, and
    without both the part is not continued.
    """
    host.files["/a"] = bytes(len(CONTENT))

    def broken(host, handler, content):
        answers.breaks_after(1000, with_etag)(host, handler, content)
        host.files["/a"] = CONTENT

    host.script["/a"] = [broken]
    fetch(has_hash=has_hash)
    assert host.paths() == ["/a"] * (3 if has_hash and not with_etag else 2)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_asked_again(fetch, host, answers, code, waits):
    host.script["/a"] = [answers.status(code, Retry_After="7"), answers.status(code)]
    fetch()
    assert waits == [7.0, 2.0]


@pytest.mark.parametrize("code", [429, 503])
def test_a_host_that_stays_busy_is_left_also_for_other_files(fetch, host, other_host, answers, code):
    host.script["/a"] = [answers.status(code)] * 3
    other_host.files["/a"] = CONTENT
    unreachable = set()
    fetch(f"{host.url}/a", f"{other_host.url}/a", unreachable=unreachable)
    assert unreachable == {host.url.removeprefix("http://")}


def test_a_host_that_became_busy_in_the_middle_is_not_left_for_other_files(fetch, host, answers):
    host.script["/a"] = [answers.breaks_after(1000), *[answers.status(503)] * 3]
    unreachable = set()
    with pytest.raises(UserError, match="503 Service Unavailable, 3 times"):
        fetch(unreachable=unreachable)
    assert not unreachable


def test_a_server_cannot_ask_for_hours(fetch, host, answers, waits):
    host.script["/a"] = [answers.status(503, Retry_After="86400")]
    fetch()
    assert waits == [downloads.LONGEST_WAIT]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_another_address_is_tried_at_once(fetch, host, other_host, answers, code, waits):
    host.script["/a"] = [answers.status(code)]
    other_host.files["/b/a"] = CONTENT
    assert fetch(f"{host.url}/a", f"{other_host.url}/b/a") == f"{other_host.url}/b/a"
    assert not waits


@pytest.mark.parametrize("body", [b"<html>Log in to the network</html>", CONTENT[:-1], CONTENT + b"x", b""])
def test_wrong_bytes_are_never_used(fetch, host, other_host, answers, body, tmp_path):
    host.script["/a"] = [answers.other_bytes(body)] * 2
    with pytest.raises(UserError, match="its hash is wrong"):
        fetch()
    assert not os.listdir(tmp_path / "new")
    other_host.files["/a"] = CONTENT
    fetch(f"{host.url}/a", f"{other_host.url}/a")


def test_redirects_are_followed_with_the_range(fetch, host, other_host, answers):
    other_host.files["/real"] = CONTENT
    other_host.script["/real"] = [answers.breaks_after(1000)]
    host.script["/a"] = [answers.redirects_to(f"{other_host.url}/real")] * 2
    fetch()
    assert other_host.requests[1][1]["Range"] == "bytes=1000-"


def test_a_redirect_loop_ends(fetch, host, other_host, answers):
    host.script["/a"] = [answers.redirects_to(f"{host.url}/a")] * 20
    other_host.files["/a"] = CONTENT
    fetch(f"{host.url}/a", f"{other_host.url}/a")
    assert len(host.requests) < 20


def test_a_redirect_to_a_local_file_is_refused(fetch, host, answers, tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT)
    host.script["/a"] = [answers.redirects_to(f"file://{tmp_path}/secret")]
    with pytest.raises(UserError, match="302"):
        fetch()


def test_no_server_at_all(fetch, waits, patience):
    unreachable = set()
    with pytest.raises(UserError, match=r"^cannot download a \(127.0.0.1:1: Connection refused\): check the network"):
        fetch("http://127.0.0.1:1/a", unreachable=unreachable)
    assert waits == [1.0] and unreachable == {"127.0.0.1:1"}
    with pytest.raises(UserError, match=r"127.0.0.1:1: cannot be reached"):
        fetch("http://127.0.0.1:1/a", unreachable=unreachable)
    assert waits == [1.0]


def test_a_part_of_the_second_address_is_continued_there(fetch, host, other_host, answers):
    """Although the first address is asked first otherwise."""
    other_host.files["/a"] = CONTENT
    other_host.script["/a"] = [answers.breaks_after(1000), answers.status(404)]
    host.script["/a"] = [answers.status(404)]
    both = (f"{host.url}/a", f"{other_host.url}/a")
    with pytest.raises(UserError):
        fetch(*both)
    assert fetch(*both) == both[1]
    assert other_host.requests[-1][1]["Range"] == "bytes=1000-"


def test_a_mirror_is_tried_first(fetch, host, other_host, monkeypatch):
    monkeypatch.setenv("S2SJAX_DATA_MIRROR", f"{other_host.url}/mirror/")
    other_host.files["/mirror/example.org/x/a"] = CONTENT
    assert fetch("https://example.org/x/a") == f"{other_host.url}/mirror/example.org/x/a"
    del other_host.files["/mirror/example.org/x/a"]
    shutil.rmtree("new")
    assert fetch(f"{host.url}/a") == f"{host.url}/a"


@pytest.mark.parametrize("mirror", ["mirror.org/data", "ftp://mirror.org", "https://", "http://[", "http://m:port"])
def test_a_mirror_that_is_no_address_is_named(fetch, host, monkeypatch, mirror):
    monkeypatch.setenv("S2SJAX_DATA_MIRROR", mirror)
    error = f"S2SJAX_DATA_MIRROR is {mirror.rstrip('/')!r}, which is no address: write https://HOST/PATH"
    assert refused(fetch).startswith(error) and not host.requests


def test_a_path_may_have_blanks_and_letters_of_any_language(fetch, host):
    host.files["/w%C3%B6rter/a%20b"] = CONTENT
    assert fetch(f"{host.url}/wörter/a b").endswith("/wörter/a b")
    assert fetch(f"{host.url}/w%C3%B6rter/a%20b") and set(host.paths()) == {"/w%C3%B6rter/a%20b"}


def test_a_proxy_of_the_environment_is_used(fetch, host, other_host, monkeypatch):
    monkeypatch.setenv("http_proxy", other_host.url)
    other_host.files["http://example.invalid/a"] = CONTENT
    fetch("http://example.invalid/a")
    assert other_host.paths() == ["http://example.invalid/a"] and not host.requests


def test_a_local_file_is_an_address_too(fetch, tmp_path):
    (tmp_path / "b").write_bytes(CONTENT)
    fetch(f"file://{tmp_path}/none", f"file://{tmp_path}/b")


def test_a_full_disk_is_one_line(fetch, monkeypatch):
    def full(self, chunks):
        with downloads.writing(self.target):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloads._Partial, "append", full)
    with pytest.raises(UserError, match=r"cannot write new/a \(No space left on device\): free some space"):
        fetch()
