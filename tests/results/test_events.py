"""Event files: append-only, readable while they are written."""

import json
import zlib

import pytest

from dpcompare.errors import RequestError
from dpcompare.results.events import Alive, CheckpointSaved, Ended, EventLog, EventTail, read_events
from dpcompare.results.run_dir import event_path
from tests.support.events import ready, started, trained


def write(run_dir, *events):
    log = EventLog(run_dir, 0)
    for event in events:
        log.append(event)
    log.close()
    return event_path(run_dir, 0)


def test_events_are_seen_as_soon_as_they_are_written(tmp_path):
    tail = EventTail(tmp_path, range(2))
    assert list(tail.new_events()) == []
    logs = [EventLog(tmp_path, rank) for rank in range(2)]
    logs[1].append(started(time=1.0, pid=7))
    assert list(tail.new_events()) == [started(time=1.0, pid=7, process_rank=1)]
    logs[0].append(Ended(time=2.0))
    logs[1].append(Ended(time=3.0))
    assert [event.time for event in tail.new_events()] == [2.0, 3.0]
    assert list(tail.new_events()) == []
    for log in logs:
        log.close()


def test_a_line_begins_with_its_kind_its_time_and_its_process(tmp_path):
    """The file is read by people too; series that were not measured are left out."""
    content = json.loads(write(tmp_path, trained([1.5], step=1, time=2.0)).read_text())
    assert list(content)[:5] == ["kind", "time", "process_rank", "step", "losses"]
    assert (content["kind"], content["time"], content["losses"]) == ("train", 2.0, [1.5])
    assert "joules" not in content


def test_a_line_that_is_not_complete_waits(tmp_path):
    written = write(tmp_path, started()).read_text()
    tail = EventTail(tmp_path, range(1))
    with event_path(tmp_path, 0).open("a") as file:
        file.write(written[:12])
        file.flush()
        assert len(list(tail.new_events())) == 1
        file.write(written[12:])
    assert len(list(tail.new_events())) == 1


def test_what_follows_a_damage_is_not_read(tmp_path):
    path = write(tmp_path, *(trained([1.0], step=step) for step in (1, 2, 3)))
    path.write_text(path.read_text().replace('"step": 2', '"step": 7'))
    tail = EventTail(tmp_path, range(1))
    assert [event.step for event in tail.new_events()] == [1]
    assert list(tail.new_events()) == []
    assert tail.damaged == [0]


def test_what_was_written_before_a_crash_can_be_read(tmp_path):
    path = write(tmp_path, trained([1.5], step=1))
    with path.open("a") as file:
        file.write('{"kind": "train", "lo')
    assert [event.losses for event in read_events(tmp_path, 1)] == [[1.5]]


def append_line(path, **fields):
    text = json.dumps({"kind": "train", "time": 1.0, "process_rank": 0} | fields)
    with path.open("a") as file:
        file.write(f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n')


def test_what_only_a_newer_version_knows_is_skipped(tmp_path):
    path = write(tmp_path, ready())
    append_line(path, kind="weather", degrees=21)
    append_line(path, kind="alive", battery=0.5)
    write(tmp_path, CheckpointSaved(step=1, seconds=0.1, bytes=7))
    kinds = [type(event) for event in read_events(tmp_path, 1)]
    assert kinds == [type(ready()), Alive, CheckpointSaved]


def test_an_older_event_that_lacks_a_field_is_refused(tmp_path):
    append_line(write(tmp_path, ready()), step=1, losses=[1.0], other_seconds=[0.1])
    with pytest.raises(RequestError, match=r"'train' has the fields .*other_seconds.*host_overhead_seconds.*version"):
        read_events(tmp_path, 1)
