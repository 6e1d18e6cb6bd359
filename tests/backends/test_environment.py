"""Variables of the environment that change speed, told apart from those that we set."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from dpcompare.backends.availability import installed_versions
from dpcompare.backends.description import acting_on, speed_variables


def test_what_a_user_has_set_is_recorded_and_what_we_set_is_not():
    environ = {
        "PATH": "/usr/bin",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_P2P_DISABLE": "1",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "KMP_DUPLICATE_LIB_OK": "True",
        "OMP_NUM_THREADS": "2",
        "TF_CONFIG": "{}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:30001",
        "TORCH_HOME": "/data/torch",
        "TF_CLI_CONFIG_FILE": "/root/.terraformrc",
        "TF_VAR_region": "eu",
        "SECRET_TOKEN": "x",
    }
    assert speed_variables(environ, threads=2) == {"NCCL_P2P_DISABLE": "1", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}


@pytest.mark.parametrize(
    "name",
    [
        "TF_ENABLE_ONEDNN_OPTS",
        "TF_NUM_INTRAOP_THREADS",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_DEFAULT_FPMATH_MODE",
        "XLA_FLAGS",
        "XLA_PYTHON_CLIENT_ALLOCATOR",
        "JAX_DEFAULT_MATMUL_PRECISION",
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "NCCL_ALGO",
        "OMP_DYNAMIC",
        "KMP_AFFINITY",
        "MKL_DYNAMIC",
    ],
)
def test_what_changes_speed_or_rounding_is_recorded(name):
    assert speed_variables({name: "1"}, threads=1) == {name: "1"}


def test_threads_other_than_those_of_the_plan_are_recorded():
    environ = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}
    assert speed_variables(environ, threads=4) == {"OMP_NUM_THREADS": "1"}


def test_a_variable_of_one_framework_acts_on_that_one_alone():
    variables = {"OMP_DYNAMIC": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "TORCH_COMPILE_DEBUG": "1"}
    assert acting_on("torch", variables).keys() == {"OMP_DYNAMIC", "TORCH_COMPILE_DEBUG"}
    assert acting_on("tensorflow", variables).keys() == {"OMP_DYNAMIC", "TF_ENABLE_ONEDNN_OPTS"}
    assert acting_on("jax", variables).keys() == {"OMP_DYNAMIC"}


def test_a_variable_of_xla_acts_on_both_frameworks_that_have_it():
    variables = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "JAX_ENABLE_X64": "1"}
    assert acting_on("torch", variables) == {}
    assert acting_on("tensorflow", variables).keys() == {"XLA_FLAGS"}
    assert acting_on("jax", variables) == variables


@pytest.mark.process
def test_an_interpreter_says_what_is_installed_in_it():
    versions = installed_versions("torch", ["numpy", "PIL", "no_such_package"], sys.executable)
    assert versions == {"python": sys.version.split()[0], "numpy": version("numpy"), "PIL": version("pillow")}


@pytest.mark.tensorflow
@pytest.mark.slow
def test_tensorflow_starts_without_what_no_run_needs():
    """A custom model may still import it."""
    script = (
        "import dpcompare.backends.tensorflow, sys; assert not {'sklearn', 'jax'} & set(sys.modules)\n"
        "from sklearn.datasets import load_digits"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
