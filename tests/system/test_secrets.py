"""What is taken for a secret, and what is not."""

import base64
import random
import time

import pytest

from dpcompare.backends.description import speed_variables, withheld_variables
from dpcompare.system.secrets import is_secret

RANDOM = random.Random(39)
BYTES = [RANDOM.randbytes(32) for _ in range(500)]


@pytest.mark.parametrize(
    "name",
    [
        "TF_HTTP_PASSWORD", "TF_ENCRYPTION", "TF_PASSWORD", "NCCL_AUTH", "MKL_LICENSE", "TORCH_HUB_TOKEN", "JAX_TOKEN",
        "TF_API_KEY", "TORCH_CREDENTIALS", "XLA_SECRET", "nccl_password", "TF_PASSPHRASE", "TF_PWD", "JAX_CERT",
    ],
)  # fmt: skip
def test_a_name_of_a_secret_is_never_recorded(name):
    environ = {name: "off", "NCCL_ALGO": "Ring"}
    assert speed_variables(environ, threads=1) == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    "value",
    [
        "https://user:pass@proxy:8080", "socks5://:pass@host", "-----BEGIN PRIVATE KEY-----\nMII", "hf_abcdefghijkl",
        "ghp_abcdefghijkl", "github_pat_abcdefgh", "glpat-abcdefgh1", "xoxb-12345678", "sk-ant-REDACTED",
        "AKIAABCDEFGHIJKL", "eyJhbGciOiJIUzI1NiJ9.e30.x", "--flag=hf_abcdefghijkl",
        "https://token@host", "password=hunter2", "the-aB3dE5fG7hI9jK1lM3nO5", "aB3dE5fG7_abc_hI9jK1lM3nO5pQ",
        "0123456789abcdef0123", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    ],
)  # fmt: skip
def test_a_value_like_a_secret_is_recorded_by_name_alone(value):
    environ = {"XLA_FLAGS": value}
    assert speed_variables(environ, threads=1) == {}
    assert withheld_variables(environ) == ["XLA_FLAGS"]


@pytest.mark.parametrize("encode", [bytes.hex, lambda raw: base64.b64encode(raw).decode()], ids=["hex", "base64"])
def test_nearly_all_random_values_look_like_secrets(encode):
    found = sum(is_secret("XLA_FLAGS", encode(raw)) for raw in BYTES)
    assert found / len(BYTES) > 0.97


@pytest.mark.parametrize(
    "value",
    [
        "--xla_gpu_enable_triton_gemm=false --xla_dump_to=/tmp/Foo12/barBaz9/generated_dump",
        "/usr/local/cuda-12.4/lib64/libcudnn.so.9", "granularity=fine,compact,1,0",
        "max_split_size_mb:128,expandable_segments:True", "/opt/Miniconda3/envs/py311", "mlx5_0:1,mlx5_1:1",
        "--xla_disable_hlo_passes=fusion",
        "0x3fffffffffffffffffffffffff", "12345678901234567890123", "Simple,LL128", "",
    ],
)  # fmt: skip
def test_settings_of_speed_are_recorded(value):
    assert not is_secret("XLA_FLAGS", value)


def test_a_long_value_takes_no_time():
    before = time.process_time()
    assert is_secret("XLA_FLAGS", "a" * 128_000)
    assert not is_secret("XLA_FLAGS", "a" * 9_999)
    assert not is_secret("XLA_FLAGS", "a://" * 2_000)
    assert time.process_time() - before < 5
