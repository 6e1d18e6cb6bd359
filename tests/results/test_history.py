"""A run in several attempts: each stays what it was."""

import pytest

from dpcompare.config.run import RunConfig
from dpcompare.results.attempts import History
from dpcompare.results.history import close_attempt
from tests.support.recorded import aggregated, events, record, recorded_config


@pytest.fixture
def config():
    return recorded_config()


def test_an_attempt_keeps_the_config_that_it_was_started_with(config, tmp_path):
    """The launcher was killed, so there is no result; then config.json was edited to another mode."""
    config.save(tmp_path / "attempt-config.json")
    aggregated(config, tmp_path, events(0) + events(1))
    edited = config.model_copy(update={"mode": "fsdp"})
    edited.save(tmp_path / "config.json")
    (tmp_path / "logs").mkdir()
    close_attempt(tmp_path, edited, step=2)
    (attempt,) = History.load(tmp_path).attempts
    assert (attempt.mode, attempt.last_step) == ("ddp", 4)
    assert RunConfig.load(tmp_path / "attempts" / "01" / "config.json") == config
    assert not (tmp_path / "attempt-config.json").exists()
    assert RunConfig.load(tmp_path / "config.json") == edited


def test_an_attempt_of_a_generated_script_has_config_json_alone(config, tmp_path):
    config.save(tmp_path / "config.json")
    record(0).save(tmp_path)
    aggregated(config, tmp_path, events(0) + events(1))
    close_attempt(tmp_path, config.model_copy(update={"mode": "fsdp"}), step=2)
    assert RunConfig.load(tmp_path / "attempts" / "01" / "config.json") == config
    assert (tmp_path / "attempts" / "01" / "process-0.json").is_file()
