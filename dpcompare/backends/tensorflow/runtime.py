"""The TensorFlow runtime of a process: its devices, threads and precision, and the versions that a result records."""

from __future__ import annotations

import os
from pathlib import PurePath

import tensorflow as tf

from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.backends.keras import settings
from dpcompare.config.run import RunConfig
from dpcompare.system.terminal_text import pluralize


def configure_devices(config: RunConfig) -> None:
    """Set the threads, the GPUs, and the devices into which the CPU is divided, before TensorFlow uses any.

    Raises:
        RuntimeError: TensorFlow sees fewer or more GPUs than the plan gives this process.
    """
    replicas = config.topology.replicas_per_process
    tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads(config))
    tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads(config))
    gpus = tf.config.list_physical_devices("GPU")
    # TensorFlow itself would silently place the variables of a missing GPU on the CPU.
    if config.cluster.device_type == "gpu" and len(gpus) != replicas:
        raise RuntimeError(
            f"TensorFlow sees {pluralize(len(gpus), 'GPU')}, the plan gives this process {replicas}; its own message "
            "is above; `dpcompare setup` makes an environment with its CUDA libraries"
        )
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus and config.task == "probe":
        # What is compared must not depend on which algorithm was fastest, or on the order in which threads add up.
        tf.random.set_seed(config.workload.seed)  # which operations that draw ask for then
        tf.config.experimental.enable_op_determinism()
    if config.cluster.device_type == "cpu":
        host = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(host, [tf.config.LogicalDeviceConfiguration()] * replicas)


def intra_op_threads(config: RunConfig) -> int:
    """How many threads an operation may have: those of the process, divided among its replicas."""
    return max(1, config.topology.threads_per_process // config.topology.replicas_per_process)


def threads() -> int:
    """The threads of an operation, as TensorFlow has them."""
    return int(tf.config.threading.get_intra_op_parallelism_threads())


def inter_op_threads(config: RunConfig) -> int:
    """How many operations may run side by side.

    On CPUs one per replica, on the threads of the process. For GPUs these threads only launch kernels and wait for
    copies, of which there are more than replicas.
    """
    topology = config.topology
    on_gpu = config.cluster.device_type == "gpu"
    return max(2, topology.threads_per_process if on_gpu else topology.replicas_per_process)


def configure_precision(config: RunConfig) -> tf.DType:
    """Set the precision of what is made from now on; returns the type of images and losses."""
    precision = config.workload.precision
    tf.config.experimental.enable_tensor_float_32_execution(config.allows_tf32)
    settings.apply("tensorflow", precision)
    return tf.float64 if precision == "float64" else tf.float32


def takes_tf32() -> bool:
    """Read back, since a variable of CUDA's overrules TensorFlow's own switch."""
    overruled = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    return tf.config.experimental.tensor_float_32_execution_enabled() and not overruled


def has_fixed_algorithms(config: RunConfig) -> bool:
    """Whether no convolution algorithm is chosen by its speed."""
    # TensorFlow's switch, which the user may have set, and which a probe overrules.
    return config.task == "probe" or os.environ.get("TF_CUDNN_USE_AUTOTUNE", "").lower() in ("0", "false")


def libraries(config: RunConfig) -> dict[str, str]:
    """The compiler that built TensorFlow, and the versions of what it computes with on GPUs."""
    built = tf.sysconfig.get_build_info()
    found: dict[str, str | None] = {"compiler": PurePath(built.get("cpu_compiler", "")).name}
    if config.cluster.device_type == "gpu":
        found |= {"cuda": built.get("cuda_version"), "cudnn": built.get("cudnn_version"), "driver": driver_version()}
    return {name: str(version) for name, version in found.items() if version}


def gpu_names() -> list[str]:
    """This process's GPUs, as their maker calls them."""
    gpus = tf.config.list_physical_devices("GPU")
    return [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
