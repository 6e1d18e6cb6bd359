"""Variables of the environment that change speed, told apart from those that we set."""

from dpcompare.backends.environment import speed_variables


def test_what_a_user_has_set_is_recorded_and_what_we_set_is_not():
    environ = {
        "PATH": "/usr/bin",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_P2P_DISABLE": "1",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "KMP_DUPLICATE_LIB_OK": "True",
        "SECRET_TOKEN": "x",
    }
    assert speed_variables(environ) == {"NCCL_P2P_DISABLE": "1", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
