"""Plans are data: what would be started, without starting it."""

import json
import subprocess
from pathlib import Path

import pytest

from dpcompare.backends.other_variables import other_variables
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError
from dpcompare.launch import run as launching
from dpcompare.launch.engines.kubernetes import manifests
from dpcompare.launch.engines.slurm_job import job_script, srun_command
from dpcompare.launch.plan import INHERITED_TO_DROP, Endpoints, command_line, num_ports, plan, shell_script
from tests.support.command import invoke

RUN_DIR = Path("/runs/one")
EIGHT_GPUS = [str(index) for index in range(8)]


def config(framework, mode, nodes, devices=None, gpus=EIGHT_GPUS, num_cores=16):
    cluster = Cluster.partition(nodes, devices, gpus=gpus, num_cores=num_cores)
    return RunConfig(framework=framework, mode=mode, cluster=cluster, python="/env/bin/python")


def test_ddp_is_one_torchrun_agent_per_node():
    nodes = plan(config("torch", "ddp", 2), RUN_DIR, Endpoints([29400]))
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["0,1,2,3", "4,5,6,7"]
    assert " ".join(nodes[1].argv) == (
        "/env/bin/python -m dpcompare.backends.torch.agent --nnodes 2 --nproc-per-node 4 "
        "--master-addr 127.0.0.1 --master-port 29400 --node-rank 1 --local-addr 127.0.0.1 --max-restarts 0 "
        "--log-dir /dev/null -m dpcompare.worker /runs/one --node-rank 1"
    )
    assert [(p.process_rank, p.local_rank, p.devices) for p in nodes[1].processes] == [
        (4, 0, ("4",)),
        (5, 1, ("5",)),
        (6, 2, ("6",)),
        (7, 3, ("7",)),
    ]


def test_no_plan_makes_a_variable_that_the_sheet_would_name():
    """What the launcher gives processes differs between modes and nodes, and is no difference between arms."""

    def cpu_plans(framework, mode, row):
        nodes = len(row.roles) + 1 if row.roles else 2 if row.multi_node else 1
        cluster = Cluster.partition(nodes, 2 if row.is_pipeline else 1, device="cpu", num_cores=4)
        workload = Workload(model="toy-cnn")
        planned = RunConfig(
            framework=framework, mode=mode, workload=workload, cluster=cluster, stages=row.default_stages
        )
        return plan(planned, RUN_DIR, Endpoints(range(29400, 29400 + num_ports(planned))))

    seen = {
        (framework, mode, node.node_rank): other_variables(node.env, "key")
        for (framework, mode), row in MODES.items()
        if "cpu" in row.device_types
        for node in cpu_plans(framework, mode, row)
    }
    assert len(seen) > len(FRAMEWORKS)
    (common,) = {tuple(variables.items()) for variables in seen.values()}
    assert {"MALLOC_MMAP_MAX_", "PYTHONSAFEPATH"} <= dict(common).keys()


@pytest.mark.parametrize("compilation", ["torch.compile", "reduce-overhead"])
def test_kernels_are_compiled_by_the_cores_of_their_process(compilation):
    def compilers(tune, **devices):
        made = RunConfig(
            framework="torch",
            mode="ddp",
            cluster=Cluster.partition(1, 4, num_cores=16, **devices),
            workload=Workload(profile="native"),
            tune=tune,
        )
        return plan(made, RUN_DIR, Endpoints([29400]))[0].env.get("TORCHINDUCTOR_COMPILE_THREADS")

    assert compilers({"compilation": compilation}, gpus=EIGHT_GPUS) == "4"
    assert compilers({}, gpus=EIGHT_GPUS) is None
    assert compilers({"compilation": "torch.compile"}, device="cpu") == "1"
    assert compilers({}, device="cpu") is None


def test_eight_gpus_as_four_by_two():
    nodes = plan(config("torch", "ddp", 4), RUN_DIR, Endpoints([29400]))
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["0,1", "2,3", "4,5", "6,7"]


def test_multiworker_is_one_worker_per_node_with_a_tf_config():
    run = config("tensorflow", "multiworker", 2)
    assert num_ports(run) == 2
    nodes = plan(run, RUN_DIR, Endpoints([30001, 30002]))
    tf_configs = [json.loads(node.env["TF_CONFIG"]) for node in nodes]
    assert [c["task"] for c in tf_configs] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert {tuple(c["cluster"]["worker"]) for c in tf_configs} == {("127.0.0.1:30001", "127.0.0.1:30002")}
    assert [len(node.processes) for node in nodes] == [1, 1]
    assert nodes[1].processes[0].devices == ("4", "5", "6", "7")


def test_multiprocess_is_a_process_per_node_with_a_coordinator():
    run = config("jax", "multiprocess", 2)
    assert num_ports(run) == 1
    nodes = plan(run, RUN_DIR, Endpoints([30001]))
    assert [node.argv[1:] for node in nodes] == [
        ("-m", "dpcompare.worker", "/runs/one", "--node-rank", str(rank)) for rank in range(2)
    ]
    told = [{name: value for name, value in node.env.items() if name.startswith("JAX_")} for node in nodes]
    expected = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:30001", "JAX_NUM_PROCESSES": "2"}
    assert told == [expected | {"JAX_PROCESS_ID": str(rank)} for rank in range(2)]
    assert nodes[1].processes[0].devices == ("4", "5", "6", "7")


@pytest.mark.parametrize("mode", [("torch", "dp"), ("tensorflow", "mirrored"), ("jax", "spmd")])
def test_one_node_modes_are_one_process_with_all_devices(mode):
    run = config(*mode, 1)
    assert num_ports(run) == 0
    (node,) = plan(run, RUN_DIR, Endpoints([]))
    assert node.argv == ("/env/bin/python", "-m", "dpcompare.worker", "/runs/one", "--node-rank", "0")
    assert node.env["CUDA_VISIBLE_DEVICES"] == ",".join(EIGHT_GPUS)
    assert "TF_CONFIG" not in node.env


@pytest.mark.parametrize(
    ("framework", "mode", "nodes"),
    [
        *[("torch", "ddp", 2), ("torch", "dp", 1), ("tensorflow", "mirrored", 1), ("tensorflow", "multiworker", 2)],
        *[("jax", "spmd", 1), ("jax", "multiprocess", 2)],
    ],
)
def test_nodes_of_one_machine_talk_over_loopback(framework, mode, nodes):
    run = config(framework, mode, nodes)
    ports = range(29400, 29400 + num_ports(run))
    for node in plan(run, RUN_DIR, Endpoints(ports)):
        assert (node.env["GLOO_SOCKET_IFNAME"], node.env["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    addresses = [f"10.0.0.{rank}" for rank in range(nodes)]
    for node in plan(run, RUN_DIR, Endpoints(ports, addresses)):
        assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & node.env.keys()


def test_what_does_not_fit_into_the_run_is_refused():
    done = invoke("plan", "torch:single", "--device", "cpu", "--steps", "8", "--evaluate-every", "9")
    assert done.code == 2
    assert "evaluate_every: received 9, but the run has only 8 steps" in done.stderr


def test_the_server_of_parameters_sees_no_gpu():
    run = config("tensorflow", "parameter-server", 4, 1)
    nodes = plan(run, RUN_DIR, Endpoints(range(30001, 30005)))
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["0", "", "2", "3"]


def test_what_is_compared_on_gpus_takes_deterministic_kernels():
    run = config("torch", "ddp", 2)
    probe = run.model_copy(update={"task": "probe"})
    on_cpu = probe.model_copy(update={"cluster": Cluster.partition(2, 1, device="cpu")})
    workspaces = [
        plan(each, RUN_DIR, Endpoints([29400]))[0].env.get("CUBLAS_WORKSPACE_CONFIG") for each in (probe, run, on_cpu)
    ]
    assert workspaces == [":4096:8", None, None]


def test_a_first_step_may_take_as_long_as_its_framework_does():
    """What hangs on GPUs is named after five minutes, except where something compiles."""

    def seconds(framework, *, cluster=None, **fields):
        cluster = cluster or Cluster.partition(1, 1, gpus=["0"])
        return RunConfig(framework=framework, mode="single", cluster=cluster, **fields).seconds_to_start

    compiled = {"workload": Workload(profile="native"), "tune": {"compilation": "torch.compile"}}
    assert {name: seconds(name) for name in FRAMEWORKS} == {"torch": 300, "tensorflow": 1800, "jax": 900}
    assert seconds("torch", **compiled) == 900
    assert seconds("torch", start_timeout=5.0) == 5
    assert seconds("torch", cluster=Cluster.partition(device="cpu")) == 600


def test_cpu_runs_hide_the_gpus():
    run = RunConfig(framework="torch", mode="single", cluster=Cluster.partition(device="cpu"))
    (node,) = plan(run, RUN_DIR, Endpoints([]))
    assert node.env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("mode", "nodes", "threads"), [("ddp", 2, "2"), ("ddp", 1, "2"), ("dp", 1, "16")])
def test_thread_counts_are_set(mode, nodes, threads):
    run = config("torch", mode, nodes)
    assert {node.env["OMP_NUM_THREADS"] for node in plan(run, RUN_DIR, Endpoints([1]))} == {threads}


@pytest.mark.process
def test_a_command_line_survives_the_shell():
    node = plan(config("tensorflow", "multiworker", 2), RUN_DIR / "with 'quotes' and $HOME", Endpoints([1, 2]))[0]
    printed = subprocess.run(
        ["bash", "-c", command_line(node).replace("/env/bin/python", "printf '%s\\n'")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.splitlines() == list(node.argv[1:])


@pytest.mark.process
@pytest.mark.parametrize(
    ("framework", "mode", "start"),
    [
        ("torch", "ddp", "dpcompare.backends.torch.agent"),
        ("jax", "multiprocess", " JAX_COORDINATOR_ADDRESS=127.0.0.1:29400 JAX_NUM_PROCESSES=2 "),
    ],
)
def test_the_shell_script_is_valid_bash(framework, mode, start):
    run = config(framework, mode, 2)
    script = shell_script(run, RUN_DIR, plan(run, RUN_DIR, Endpoints([29400])))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.count(start) == 2


def slurm_config(**placement):
    cluster = Cluster.of_machines(2, 4, "gpu", 16)
    return RunConfig(
        framework="torch",
        mode="ddp",
        cluster=cluster,
        placement=Placement(engine="slurm", **placement),
        python="/python",
    )


@pytest.mark.parametrize(
    ("placement", "request_of_a_node"), [({}, "--gpus-per-node=4"), ({"gres": "gpu:a100"}, "--gres=gpu:a100:4")]
)
def test_slurm_is_asked_for_gpus_by_the_job_and_by_its_step(placement, request_of_a_node):
    lines = job_script(slurm_config(**placement), RUN_DIR).splitlines()
    assert f"#SBATCH {request_of_a_node}" in lines
    assert request_of_a_node in lines[-1].split()
    assert lines[-1].startswith("exec srun ")
    (forget,) = [line for line in lines if line.startswith("unset ")]
    assert {"SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"} <= set(forget.split())


def test_gres_belongs_to_slurm():
    with pytest.raises(ValueError, match="gres: received with engine local; expected engine slurm"):
        Placement(gres="gpu")


def test_names_with_spaces_and_patterns_reach_sbatch_as_they_are():
    config = slurm_config(account="a b", sbatch=('--comment=x y "#1"',))
    lines = job_script(config, Path("/runs/one %j's")).splitlines()
    assert '#SBATCH --output="/runs/one %%j\'s/logs/slurm.log"' in lines
    assert '#SBATCH --account="a b"' in lines
    assert r'#SBATCH --comment="x y \"#1\""' in lines


HOSTILE = (
    *(
        "$(touch F)",
        "`touch F`",
        "; touch F",
        "| touch F",
        "& touch F",
        "> F",
        "x y",
        "a'b",
        'a"b',
        "#",
        "%j",
        "!!",
        "*",
    ),
    *("${HOME}", "~root", "-x", "--nodes=9", "\u202e", "\u00e9" * 40, "=", "''", '""', "(", "{a,b}"),
)
"""Values that mean something to a shell, to sbatch or to a terminal."""
SHOWS_ARGUMENTS = 'srun() { printf \'%s\\0\' "$@"; }\nexec() { "$@"; }\n'


@pytest.mark.process
@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_of_a_job_is_more_than_a_word_to_the_shell(value, tmp_path):
    """The script is run by bash with a function in the place of srun, which writes what it was given."""
    run_dir = tmp_path / f"run {value}".replace("/", "_")
    config = slurm_config(partition=value, time=value, account=value, sbatch=(f"--comment={value}",))
    config = config.model_copy(update={"python": f"/bin/{value}"})
    script = job_script(config, run_dir)
    body = script.partition("\n")[2]
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    plain = slurm_config(partition="p", time="1", account="a", sbatch=("--comment=c",))
    assert len(directives) == job_script(plain, tmp_path).count("#SBATCH ")
    done = subprocess.run(["bash", "-c", SHOWS_ARGUMENTS + body], cwd=tmp_path, capture_output=True, check=True)
    given = done.stdout.decode().split("\0")[:-1]
    assert given == srun_command(config, run_dir)[1:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_of_a_pod_is_more_than_a_value_in_its_manifest(value):
    def container(image, claim):
        config = RunConfig(
            framework="tensorflow",
            mode="multiworker",
            placement=Placement(engine="kubernetes", image=image, volume_claim=claim),
            cluster=Cluster.of_machines(2, 1, "cpu", 1),
        )
        _, job = json.loads(json.dumps(manifests(config, "name")))["items"]
        (only,) = job["spec"]["template"]["spec"]["containers"]
        return only

    assert container(value, value) == container("an-image", "a-claim") | {"image": value}


def test_a_run_directory_that_sbatch_cannot_be_told_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no backslash"):
        job_script(slurm_config(), Path("/runs/a\\b"))
    done = invoke("plan", "--framework", "torch", "--mode", "single", "--run-dir", tmp_path / "a\ntouch F")
    assert done.code == 2
    assert "--run-dir: received" in done.stderr


def test_processes_that_share_a_gpu_see_it_once():
    cluster = Cluster.partition(2, 2, gpus=["3"], share_gpu=True)
    shared = RunConfig(framework="torch", mode="ddp", cluster=cluster)
    nodes = plan(shared, RUN_DIR, Endpoints([29400]))
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["3", "3"]
    assert [process.devices for node in nodes for process in node.processes] == [("3",)] * 4


@pytest.mark.torch
def test_a_shared_gpu_needs_room_for_each_replica(monkeypatch, tmp_path, install_gpus):
    install_gpus()
    monkeypatch.setattr(launching, "free_gpu_memory", lambda gpus: 3 << 30)
    monkeypatch.setattr(launching, "require_cuda", lambda framework, python: None)
    cluster = Cluster.partition(2, 2, gpus=["0"], share_gpu=True)
    with pytest.raises(
        RequestError, match=r"--share-gpu: 4 replicas on a GPU that has 3\.2 GB free, expected at least"
    ):
        launching.run(RunConfig(framework="torch", mode="ddp", cluster=cluster), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_jax_reads_of_an_outer_launcher_is_not_passed_on():
    """`jax.distributed` and its plugin read these where they are not told otherwise."""
    of_jax = {"JAX_CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS", "JAX_PARTITION_INDEX", "JAX_SLICE_INDEX"}
    assert of_jax <= set(INHERITED_TO_DROP)
    run = config("jax", "multiprocess", 2)
    script = shell_script(run, RUN_DIR, plan(run, RUN_DIR, Endpoints([29400])))
    assert all(f"-u {name}" in script for name in of_jax)
