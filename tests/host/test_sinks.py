"""Sinks: what arrives there, also after a resume, and how a config names them."""

import csv
import importlib.util
import json
import struct
import zlib

import pytest

import rljax
from rljax.config import resolve
from rljax.host import sinks
from rljax.run.records import metrics
from tests.run.records.test_metrics import read_events

SETTINGS = {"name": "tiny", "batch.prompts": 8, "phases": ["warm", "main"], "algorithm": "grpo()"}


def picture():
    """Return a grey PNG of 3 by 2 pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(3) for _ in range(2))
    header = struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def logger(folder, text, **options):
    return metrics.Logger(folder, openers=sinks.build(text, "test"), name="tiny", settings=SETTINGS, **options)


def write(log, first, last):
    for step in range(first, last + 1):
        phase = "warm" if step <= 2 else "main"
        values = {"loss": step / 3} if phase == "warm" else {"loss": step / 3, "kl": 0.5 * step}
        log.rollouts([{"step": step, "prompt": "1+1=", "completion": f"{step}", "reward": 1.0, "outcome": "correct"}])
        log.step(step, phase, values, {"seconds": 0.5, **({"evaluation": 1.0} if step == 3 else {})})
        if step % 2 == 0:
            log.evaluation({"step": step, "name": "training", "pass_at_k": {"1": [0.5, 0.4, 0.6]}, "greedy": [1, 0, 1]})


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_tables_are_read_back_and_cut_by_a_resume(tmp_path):
    whole = logger(tmp_path / "whole", "csv()")
    write(whole, 1, 5)
    whole.close()
    killed = logger(tmp_path / "resumed", "csv()")
    write(killed, 1, 4)
    with (tmp_path / "resumed" / "metrics.csv").open("a") as file:
        file.write("5,ma")
    resumed = logger(tmp_path / "resumed", "csv()", resume_step=3)
    write(resumed, 4, 5)
    resumed.close()
    for name in ("metrics", "timings", "evaluations"):
        rows = read(tmp_path / "resumed" / f"{name}.csv")
        assert rows == read(tmp_path / "whole" / f"{name}.csv")
    rows = read(tmp_path / "whole" / "metrics.csv")
    assert [{k: float(v) if k != "phase" else v for k, v in row.items() if v} for row in rows] == whole.history
    assert read(tmp_path / "whole" / "evaluations.csv")[0] == dict(
        step="2", phase="training", pass_at_1="0.5", greedy="1"
    )
    first = logger(tmp_path / "whole", "csv()")  # a new run
    assert read(tmp_path / "whole" / "metrics.csv") == []
    first.close()


def test_tensorboard_gets_rollouts_pictures_and_settings(tmp_path):
    log = logger(tmp_path, "tensorboard()")
    write(log, 1, 1)
    (tmp_path / "passk.png").write_bytes(picture())
    log.picture(tmp_path / "passk.png", 1)
    log.close()
    values = {v.tag: v for e in read_events(tmp_path / "tensorboard") for v in e.summary.value}
    (text,) = values["rollouts/text_summary"].tensor.string_val
    assert b"outcome correct, reward 1.0" in text and b"    1+1=1" in text
    assert b"| batch.prompts | `8` |" in values["config/text_summary"].tensor.string_val[0]
    image = values["passk"].image
    assert (image.width, image.height, image.encoded_image_string) == (3, 2, picture())
    assert b"grpo()" in values["_hparams_/session_start_info"].metadata.plugin_data.content


def transactions(content):
    """Yield the records of a file of wandb: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        parts, place = parts + content[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    log = logger(tmp_path, "wandb('study', group='seeds', mode='offline') | csv()")
    write(log, 1, 2)
    (tmp_path / "passk.png").write_bytes(picture())
    log.picture(tmp_path / "passk.png", 2)
    log.close()
    wandb.teardown()  # as at the end of the process: waits for the service that writes the file
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged, run = {}, None
    for record in transactions(path.read_bytes()):
        if record.HasField("run"):
            run = record.run
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            logged.setdefault(record.history.step.num, {})[name] = json.loads(item.value_json)
    assert (run.project, run.run_group, run.display_name) == ("study", "seeds", "tiny")
    assert {u.key: json.loads(u.value_json) for u in run.config.update}["batch.prompts"] == 8
    assert logged[1]["loss"] == 1 / 3 and logged[1]["time/seconds"] == 0.5
    assert logged[2]["evaluation/pass_at_1"] == 0.5 and {"rollouts", "passk"} <= {k.split("/")[0] for k in logged[2]}
    assert len(read(tmp_path / "metrics.csv")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord()", r"config\.log\.sinks: unknown name 'tensorbord'\. Did you mean 'tensorboard'\?"),
        ("wandb()", r"config\.log\.sinks: wandb\(project, entity, group, mode\): missing .*'project'"),
        ("wandb('a', mode='on')", r"mode must be one of 'online', 'offline'"),
        ("csv(3)", r"config\.log\.sinks: csv\(\): too many positional arguments"),
    ],
)
def test_a_bad_sink_is_refused_before_the_run(text, message):
    config = rljax.default_config()
    config.log.sinks = text
    with pytest.raises(ValueError, match=message):
        resolve.check(config)


def test_a_sink_whose_package_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"the package wandb is not installed: pip install wandb"):
        sinks.build("wandb('a')", "config.log.sinks")


def test_none_is_no_sink(tmp_path):
    log = logger(tmp_path, "none")
    write(log, 1, 2)
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"{name}.jsonl" for name in ("evaluations", "metrics", "rollouts", "timings")
    ]
