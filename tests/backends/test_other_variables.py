"""Variables that no list knows have digests of their own, and no value of one is written anywhere."""

import stat

import pytest

from dpcompare.backends.other_variables import DIGITS, KEY_FILE, digest, make_key, other_variables, read_key

INHERITED = {
    "LD_PRELOAD": "/lib/libjemalloc.so",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "PYTHONDEVMODE": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "LRU_CACHE_CAPACITY": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONTRACEMALLOC": "25",
}


@pytest.mark.parametrize("name", INHERITED)
def test_what_may_change_speed_is_seen_and_not_read(name):
    found = other_variables({name: INHERITED[name], "PWD": "/"}, "key")
    assert found == {name: digest("key", f"{name}={INHERITED[name]}")}
    assert found != other_variables({name: "another"}, "key")
    assert found != other_variables({name: INHERITED[name]}, "key of another study")
    assert len(found[name]) == DIGITS


@pytest.mark.parametrize(
    "name",
    [
        *(
            "COLUMNS",
            "OLDPWD",
            "SHLVL",
            "SSH_TTY",
            "TERM",
            "TERM_PROGRAM",
            "TMUX_PANE",
            "WINDOWID",
            "XDG_SESSION_ID",
            "_",
        ),
        *("LOCAL_RANK", "MASTER_ADDR", "RANK", "TORCHELASTIC_RUN_ID", "TF_CONFIG", "JAX_PROCESS_ID", "NPROC"),
        *("SLURM_JOB_ID", "SLURMD_NODENAME", "KUBERNETES_PORT", "REDIS_SERVICE_HOST", "REDIS_PORT_6379_TCP_ADDR"),
        *("PATH", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV", "DPCOMPARE_STEPS", "CUDA_VISIBLE_DEVICES"),
        *("OMP_NUM_THREADS", "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"),  # recorded with their values
    ],
)
def test_what_is_harmless_or_known_is_left_out(name):
    assert other_variables({name: "x"}, "key") == {}


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", "x"), ("SERVICE_LOGIN", "https://me:word@host")])
def test_of_what_looks_secret_there_is_not_even_a_digest(name, value):
    assert other_variables({name: value}, "key") == {}


def test_runs_of_a_study_share_its_key(tmp_path):
    run_dir, alone = tmp_path / "study" / "runs" / "round-01" / "arm", tmp_path / "alone"
    for folder in (tmp_path / "study", run_dir, alone):
        folder.mkdir(parents=True, exist_ok=True)
        make_key(folder)
    key = read_key(run_dir / KEY_FILE)
    assert key == read_key(tmp_path / "study" / KEY_FILE) != read_key(alone / KEY_FILE)
    assert len(key) == 64
    assert stat.S_IMODE((run_dir / KEY_FILE).stat().st_mode) == 0o600
    make_key(run_dir)  # a resumed run
    assert read_key(run_dir / KEY_FILE) == key
    assert read_key(tmp_path / KEY_FILE) is None
