"""The answers of a run of every task: no request compiles a program, and files are read as allowed."""

import base64
import io
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo
from tasks.test_task_laws import EXPERIMENTS

from s2sjax import config
from s2sjax.config import replace
from s2sjax.data.signals.audio import LogMel
from s2sjax.data.signals.spoken_digits import Recordings
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.serve import api
from s2sjax.tasks.task import task_of
from s2sjax.training.mesh import make_mesh

BEAM = replace(
    EXPERIMENTS["translation"],
    name="beam",
    search=config.Search(beam_size=2, max_source=12),
    evaluate=config.Evaluate(batch_size=8),
)
LINES = {
    "translation": lambda n: "abcd"[n % 4] * n,
    "beam": lambda n: "abcd"[n % 4] * n,
    "regression": lambda n: f"1 {n} 3 4",
    "pretraining": lambda n: " ".join(["[MASK]"] * n),
    "recognition": lambda n: " ".join(["0.5"] * 3 * n),
    "transcription": lambda n: " ".join(["0.5"] * 3 * n),
}
"""function from n to a line of length n"""


def opened(experiment, monkeypatch, devices=1):
    """An untrained run with random parameters."""
    task = task_of(experiment)
    task = task.replace(assets=task.learn_assets(task.read()))
    mesh = make_mesh(config.Mesh(), jax.devices()[:devices])
    monkeypatch.setattr(run.Run, "mesh", lambda self: mesh)
    monkeypatch.setattr(run.Run, "params", lambda self, *_: (params, 0))
    params = jax.device_put(
        task.init(jax.random.key(0)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    return run.Run(Path("runs") / experiment.name, task)


class Compilations:
    """Counts the programs compiled inside, including those from the persistent cache."""

    def __enter__(self):
        self.count, self.listen = 0, self._listen
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self.listen)

    def _listen(self, event, seconds, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"


def picture(n, size=8):
    image = pytest.importorskip("PIL.Image").new("RGB", (size + n, size), (n, 0, 0))
    image.save(file := io.BytesIO(), "PNG")
    return base64.b64encode(file.getvalue()).decode()


@zoo.each(
    ("beam", *EXPERIMENTS, "beam on 8 devices"),
    quick=("tagging",),
    rare=set(EXPERIMENTS) - {"language_model"},
)
def test_nothing_is_compiled_for_a_request(name, monkeypatch):
    """No length or number of lines and no field compiles a program; lines that are too long are refused or cut."""
    name, _, several = name.partition(" ")
    service = api.Service(opened(EXPERIMENTS.get(name, BEAM), monkeypatch, 8 if several else 1))
    with Compilations() as before:
        service.warm_up()
    service.engine.start()
    line, refused = LINES.get(name, lambda n: " ".join(["a"] * n)), []
    with Compilations() as after:
        for count in (1, 2, 3, 5, 9, 17, 33, 70):
            if name == "captioning":
                request = {"files": [picture(n) for n in range(count)]}
            else:
                request = {"lines": [line(1 + n % 12) for n in range(count)]}
            try:
                assert len(service.decode(request).result(60)["outputs"]) == count
            except UserError as error:
                refused.append(str(error))
        for length in () if name in ("captioning", "regression") else (3, 6, 13, 30, 80, 300):
            try:
                service.decode({"lines": [line(length)]}).result(60)
                if name == "beam":
                    service.decode({"lines": [line(length), "a"], "nbest": 2, "alignment": True}).result(60)
                    service.explain({"line": line(length)}).result(60)
            except UserError as error:
                refused.append(str(error))
    service.engine.close()
    assert before.count > 0 and after.count == 0
    assert service.health()["status"] == "ok" and service.health()["compiled"] == service.health()["programs"] > 0
    assert all(reason.endswith(": shorten it") for reason in refused), refused
    assert bool(refused) == (name not in ("translation", "beam", "captioning", "regression"))


@pytest.mark.slow
def test_while_it_warms_up_requests_are_told_so(monkeypatch):
    service = api.Service(opened(BEAM, monkeypatch))
    free, printed = threading.Event(), []
    monkeypatch.setattr(service, "_programs", lambda: [lambda: free.wait(10), lambda: None])
    service.start(printed.append)
    with pytest.raises(api.Warming, match=r"of 2 are ready: try again later|of 0 are ready"):
        service.decode({"lines": ["a"]})
    assert service.health()["status"] == "warming"
    free.set()
    assert service.engine.call(lambda: service.warming).result(60) is False
    first, last = printed
    assert first.startswith("compiling the programs: ") and last.startswith("ready: 2 programs compiled in ")
    assert service.decode({"lines": ["", "a"]}).result(60)["outputs"][0]["text"] == ""
    service.engine.close()


def test_samples_of_a_line_depend_on_its_place_in_the_request_alone(monkeypatch):
    drawn = config.Search(beam_size=1, nbest=2, sampling=config.Sampling(count=3))
    service = api.Service(opened(replace(BEAM, search=drawn), monkeypatch))
    request = {"lines": ["abc"] * 5, "nbest": 2}
    alone = [service._begin([api.Asked("abc", "", number, 2, False)])()[0] for number in range(5)]
    together = [service.decode(request) for _ in range(3)]
    service.engine.start()
    for future in together:
        found = future.result(60)["outputs"]
        assert [[each["text"] for each in output["nbest"]] for output in found] == [
            [each["text"] for each in output["nbest"]] for output in alone
        ]
    service.engine.close()


# ------------------------------------------------------------------------------------------- files


def tone(samples, format="WAV"):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(file := io.BytesIO(), 0.1 * np.sin(np.arange(samples)), 8000, format=format)
    return file.getvalue()


@pytest.fixture
def recognizer(monkeypatch):
    base = EXPERIMENTS["recognition"]
    corpus = Recordings(labels=base.data.corpus.alphabet, audio=LogMel(filters=3))
    task = task_of(base)
    found = opened(base, monkeypatch)
    data = replace(base.data, corpus=corpus, buckets=((64, 2),))
    return run.Run(found.folder, task_of(replace(base, data=data)).replace(assets=task.learn_assets(task.read())))


def test_recordings_are_sent_or_named_below_a_folder(recognizer, tmp_path):
    for number, samples in enumerate((800, 5000, 20_000)):
        (tmp_path / f"{number}.wav").write_bytes(tone(samples))
    service = api.Service(recognizer, files=tmp_path)
    assert service.about()["files"] == "WAV, FLAC or OGG"
    service.warm_up()
    service.engine.start()
    sent = [base64.b64encode(tone(samples, "FLAC")).decode() for samples in (800, 5000, 20_000)]
    with Compilations() as after:
        named = service.decode({"lines": ["0.wav", "1.wav", "2.wav"]}).result(60)
        assert named == service.decode({"files": sent}).result(60) and len(named["outputs"]) == 3
        with pytest.raises(UserError, match=r"^files\[0\] has 80,000 samples, at most .* are read: shorten it"):
            service.decode({"files": [base64.b64encode(tone(80_000)).decode()]}).result(60)
        with pytest.raises(UserError, match=r"^files\[0\] cannot be read .*: give a WAV, FLAC or OGG file"):
            service.decode({"files": ["AAAA"]}).result(60)
    assert after.count == 0
    reasons = set()
    for name in ("/dev/zero", "/etc/passwd", "../x", "nothing.wav"):
        with pytest.raises(UserError) as error:
            service.decode({"lines": [name]})
        reasons.add(str(error.value))
    assert len(reasons) == 1 and "is not a file" in reasons.pop()
    service.engine.close()


def test_without_a_folder_no_file_is_opened(recognizer, monkeypatch, tmp_path):
    service = api.Service(recognizer)
    with pytest.raises(UserError, match="send them in base64 as files, or start the server with --files FOLDER"):
        service.decode({"lines": ["/dev/zero"]})
    with pytest.raises(UserError, match="send lines or files, not both"):
        service.decode({"lines": [], "files": []})
    monkeypatch.setattr(api, "MOST_FILE_BYTES", 10)
    with pytest.raises(UserError, match="the files have more than 10 bytes: send fewer"):
        service.decode({"files": ["AAAA"] * 4})
    with pytest.raises(UserError, match="reads lines, not files: leave out --files"):
        api.Service(opened(BEAM, monkeypatch), files=tmp_path)
