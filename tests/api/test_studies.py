"""Studies from Python: the same as from the command line, also under an event loop, in a thread, and twice at once."""

import json

import pytest

import dpcompare as dp
from tests.support.command import dpcompare

CODE = """
import asyncio, threading, dpcompare as dp
workload = dp.Workload(
    model="mlp", image_size=32, dataset="synthetic-mini", global_batch_size=16, steps=6, warmup_steps=1
)

def study(out, rounds=1):
    arms = ["torch:single", dp.Arm("torch:single", batchnorm="sync")]
    return dp.compare(arms, workload, rounds=rounds, device="cpu", out=out, late_step=False)

async def main():
    made = study("a")                                # it blocks the loop, and works
    both = await asyncio.gather(asyncio.to_thread(study, "b"), asyncio.to_thread(second, "b"))
    return made, both

def second(out):
    import time, pathlib
    while not pathlib.Path(out, "study.json").exists():
        time.sleep(0.05)
    try:
        study(out)
    except dp.RequestError as error:
        return str(error)

made, (other, refusal) = asyncio.run(main())
print(made, other, refusal, sep="\\n")
report = made.resume(rounds=2).report()
report.save("r.html", "r.csv", "r.md", "r.json")
print(report.claims[0].sentence)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_study_from_python_is_one_of_the_command_line(tmp_path, capsys):
    exec(compile(CODE, "script.py", "exec"), {"__name__": "__main__"})
    done = capsys.readouterr()
    made, other, refusal, sentence = done.out.splitlines()
    assert (made, other) == ("Study('a': 2 arms, 1 round)", "Study('b': 2 arms, 1 round)")
    assert "is being run by another process" in refusal
    assert "[1/2] round 1: torch single 1x1" in done.err  # progress, as of the command
    assert "torch single 1x1 and torch single 1x1 batchnorm=sync are NOT COMPARABLE" in sentence
    from_the_command = dpcompare("report", tmp_path / "a", "--json", "-")
    assert from_the_command.json["claims"][0]["sentence"] == sentence
    saved = json.loads((tmp_path / "r.json").read_text())
    assert (saved["claims"], saved["settings"]) == (from_the_command.json["claims"], from_the_command.json["settings"])
    study = dp.load(tmp_path / "a")
    assert len(study.results()) == 4
    assert [each.status for each in study.results(study.arms[0])] == ["completed"] * 2
    with pytest.raises(dp.RequestError, match="arm: received 'torch', expected one of torch single 1x1"):
        study.results("torch")
    with pytest.raises(dp.RequestError, match=r"expected one that ends in .html"):
        study.report().save(tmp_path / "r.pdf")
    frame = study._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;') or frame.startswith('<iframe srcdoc="&lt;!DOCTYPE')
