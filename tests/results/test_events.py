"""Event files: append-only, readable while they are written."""

from dpcompare.results.events import EventLog, EventTail, read_events
from dpcompare.results.run_dir import event_path


def test_events_are_seen_as_soon_as_they_are_written(tmp_path):
    tail = EventTail(tmp_path, range(2))
    assert list(tail.new_events()) == []
    logs = [EventLog(tmp_path, rank) for rank in range(2)]
    logs[1].append("start", time=1.0, pid=7)
    assert list(tail.new_events()) == [{"kind": "start", "time": 1.0, "process_rank": 1, "pid": 7}]
    logs[0].append("end", time=2.0)
    logs[1].append("end", time=3.0)
    assert [event["time"] for event in tail.new_events()] == [2.0, 3.0]
    assert list(tail.new_events()) == []
    for log in logs:
        log.close()


def test_a_line_that_is_not_complete_waits(tmp_path):
    log = EventLog(tmp_path, 0)
    log.append("start", time=1.0)
    log.close()
    written = event_path(tmp_path, 0).read_text()
    tail = EventTail(tmp_path, range(1))
    with event_path(tmp_path, 0).open("a") as file:
        file.write(written[:12])
        file.flush()
        assert len(list(tail.new_events())) == 1
        file.write(written[12:])
    assert len(list(tail.new_events())) == 1


def test_what_follows_a_damage_is_not_read(tmp_path):
    log = EventLog(tmp_path, 0)
    for step in (1, 2, 3):
        log.append("train", time=1.0, step=step)
    log.close()
    path = event_path(tmp_path, 0)
    path.write_text(path.read_text().replace('"step": 2', '"step": 7'))
    tail = EventTail(tmp_path, range(1))
    assert [event["step"] for event in tail.new_events()] == [1]
    assert list(tail.new_events()) == []


def test_what_was_written_before_a_crash_can_be_read(tmp_path):
    log = EventLog(tmp_path, 0)
    log.append("train", time=1.0, losses=[1.5])
    with event_path(tmp_path, 0).open("a") as file:
        file.write('{"kind": "train", "lo')
    log.close()
    assert [event["losses"] for event in read_events(tmp_path, 1)] == [[1.5]]
