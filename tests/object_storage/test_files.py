"""Paths, files that grow, and the lock of a run folder in object storage."""

import threading
import time

import pytest
from conftest import refused

from s2sjax import files, object_storage
from s2sjax.runs import lease, lock
from s2sjax.training import run_log


def test_a_path_reads_and_writes_like_a_local_one(bucket):
    folder = files.as_path(bucket) / "folder"
    assert not folder.exists() and not (folder / "a").is_file()
    files.replace_file(folder / "a", "1")
    files.replace_file(folder / "a", "2")
    files.replace_file(folder / "b/c", b"3")
    assert (folder / "a").read_text() == "2" and (folder / "b/c").read_bytes() == b"3"
    assert folder.is_dir() and not folder.is_file() and (folder / "a").is_file() and not (folder / "a").is_dir()
    assert [path.name for path in folder.iterdir()] == ["a", "b"]
    assert [str(path) for path in folder.glob("*/c")] == [f"{bucket}/folder/b/c"]
    assert folder.absolute() == folder.resolve() == files.as_path(str(folder).replace("//", "/"))
    (folder / "a").unlink()
    (folder / "a").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=f"{folder}/a"):
        (folder / "a").read_bytes()


def test_a_file_that_grows_is_read_as_one(bucket, monkeypatch):
    monkeypatch.setattr(object_storage, "MOST_PARTS", 3)
    path, said = files.as_path(bucket) / "lines", []
    assert not path.exists()
    for start in range(0, 8, 4):  # the second outbox continues after the first
        outbox = object_storage.Outbox(said.append)
        for number in range(start, start + 4):
            outbox.append(path, f"line {number}")
            assert outbox.flush(10)
        outbox.close(10)
    assert files.read_growing(path) == "".join(f"line {number}\n" for number in range(8)) and not said
    assert len(list(path.iterdir())) < 4, "parts are not joined"
    object_storage.replace(path, "new\n")
    assert files.read_growing(path) == "new\n"


def test_a_killed_join_loses_and_repeats_no_line(bucket):
    path = files.as_path(bucket) / "lines"
    for name, text in {"1.part": "a\n", "2.part": "b\n", "3.whole": "a\nb\n", "4.part": "c\n"}.items():
        (path / f"0000000{name}").write_text(text)
    assert files.read_growing(path) == "a\nb\nc\n"


def test_lines_wait_for_the_end_of_an_outage(bucket, outage, monkeypatch, impatient):
    monkeypatch.setattr(object_storage, "SHORTEST", 0.1)
    path, said = files.as_path(bucket) / "lines", []
    outbox = object_storage.Outbox(said.append)
    outage.write_text("429")
    for number in range(3):
        outbox.append(path, str(number))
        outbox.put(files.as_path(bucket) / "time.json", str(number))
    assert not outbox.flush(60)
    outbox.append(path, "3")
    outage.unlink()
    outbox.close(60)
    assert files.read_growing(path) == "0\n1\n2\n3\n"
    assert (files.as_path(bucket) / "time.json").read_text() == "2"
    assert len(said) == 1 and "the training goes on" in said[0]


def test_an_outage_is_one_line(bucket, outage, impatient):
    outage.write_text("503")
    with pytest.raises(OSError, match=f"{bucket}") as caught:
        files.as_path(f"{bucket}/a").read_bytes()
    assert "\n" not in caught.value.strerror and object_storage.is_outage(caught.value)


@pytest.mark.parametrize(
    "scheme, text, remedy",
    [
        ("gs", "Anonymous caller does not have storage.objects.get access, 401", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3", "Unable to locate credentials", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_missing_credentials_name_what_to_set(emulators, scheme, text, remedy):
    from botocore.exceptions import BotoCoreError
    from gcsfs.retry import HttpError

    error = (
        HttpError({"code": 401, "message": text}) if scheme == "gs" else type("E", (BotoCoreError,), {"fmt": text})()
    )
    found = object_storage.explained(error, f"{scheme}://runs/a")
    assert isinstance(found, object_storage.UserError) and remedy in str(found) and not object_storage.is_outage(error)


def test_a_missing_package_and_a_short_name_are_one_line(monkeypatch, emulators):
    assert "three letters" in refused(lambda: files.as_path("gs://ab/run"))
    monkeypatch.setattr(object_storage.importlib.util, "find_spec", lambda _: None)
    assert refused(lambda: files.as_path("gs://runs/a")) == 'gs://runs/a needs gcsfs: pip install -e ".[gcs]"'
    assert refused(lambda: files.as_path("s3://runs/a")) == 's3://runs/a needs s3fs: pip install -e ".[s3]"'


# ------------------------------------------------------------------------------------- the lock


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.2)
    monkeypatch.setattr(lock, "PATIENCE", 2.0)


def stop(held: lease.Lease) -> None:
    """What a killed process does: it no longer renews its lease, and does not delete it."""
    held._ended.set()
    held._thread.join()


def test_a_lease_has_one_holder(bucket, short):
    folder = files.as_path(bucket)
    with lock.held(folder):
        assert f"{bucket} is being trained by process" in refused(lambda: lease.Lease(folder))
        lock.verify(folder)
    assert not (folder / "lock").exists()
    with lock.held(folder):
        pass


def test_of_two_processes_that_want_a_lease_one_gets_it(bucket, short, monkeypatch):
    folder, found = files.as_path(bucket), []
    start = threading.Barrier(4)

    def want():
        start.wait()
        try:
            found.append(lease.Lease(folder))
        except lease.UserError as error:
            found.append(error)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holders = [each for each in found if isinstance(each, lease.Lease)]
    assert len(holders) == 1 and len(found) == 4 and holders[0].keep()
    holders[0].release()


def test_a_lease_that_is_not_renewed_is_taken_over_and_lost(bucket, short):
    folder = files.as_path(bucket)
    first = lease.Lease(folder)
    stop(first)
    second = lease.Lease(folder)
    assert second.keep() and not first.keep()
    assert "is now being trained by process" in str(first.lost())
    first.release()
    assert second.keep(), "who has lost the lease has deleted that of the other"
    second.release()


def test_a_lease_of_a_process_that_has_ended_here_is_taken_at_once(bucket, monkeypatch):
    folder = files.as_path(bucket)
    first = lease.Lease(folder)
    stop(first)
    monkeypatch.setattr(lease, "_runs", lambda pid: False)
    begin = time.monotonic()
    second = lease.Lease(folder)
    assert time.monotonic() < begin + 10 and not first.keep()
    second.release()


def test_a_deleted_lease_is_written_again(bucket):
    folder = files.as_path(bucket)
    held = lease.Lease(folder)
    (folder / "lock").unlink()
    assert held.keep() and (folder / "lock").exists()
    held.release()


def test_a_missing_bucket_is_one_line(emulators):
    for address in ("gs://missing/run", "s3://missing/run"):
        assert refused(lambda address=address: lease.Lease(files.as_path(address))).startswith(
            f"cannot write in {address} ("
        )


def test_the_log_of_a_run_is_cut_at_its_checkpoint(bucket):
    folder = files.as_path(bucket)
    for start, last in ((0, 3), (2, 4)):
        log = run_log.Log(folder, steps=10, every=1)
        log.start(start)
        for step in range(start + 1, last + 1):
            log.step(step, {"loss": (float(step + 10 * start), 1.0)})
            log.samples(step, ["  a"])
        log.close()
    lines = run_log.read_lines(folder / run_log.METRICS)
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0)]
    assert files.read_growing(folder / run_log.SAMPLES).count("step") == 4
    assert (folder / "time.json").is_file()
