"""What a machine says of itself: by trees of files, as kernels and containers have them."""

import os

import pytest

from dpcompare.system.machine import Machine, this_machine

XEON = """\
processor\t: {number}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)   CPU @ 2.20GHz
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu sse2{flag}
"""
NEOVERSE = "processor\t: {number}\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def kernel(release="6.1.0-18-amd64", architecture="x86_64"):
    return os.uname_result(("Linux", "host", release, "#1", architecture))


def cpus(*cores, package="0"):
    """The topology of a logical processor for each of these cores."""
    folder = "sys/devices/system/cpu"
    files = {f"{folder}/cpu{number}/topology/core_cpus_list": core for number, core in enumerate(cores)}
    return files | {f"{folder}/cpu{number}/topology/physical_package_id": package for number in range(len(cores))}


def xeon(count, *, flag=" hypervisor"):
    return "\n".join(XEON.format(number=number, core=number // 2, flag=flag) for number in range(count))


MEMORY = {"proc/meminfo": "MemTotal:       25165824 kB\nMemFree:  12 kB\n"}
DEBIAN = {"etc/os-release": 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'}


def test_a_virtual_machine_says_all(tmp_path):
    firmware = {
        "sys/class/dmi/id/sys_vendor": "Google\n",
        "sys/class/dmi/id/product_name": "Google Compute Engine\n",
        "proc/sys/kernel/random/boot_id": "5e0d\n",
    }
    files = {"proc/cpuinfo": xeon(4)} | cpus("0-1", "0-1", "2-3", "2-3") | MEMORY | DEBIAN | firmware
    machine = this_machine(tree(tmp_path, files), kernel())
    assert machine == Machine(
        cpu_model="Intel(R) Xeon(R) CPU @ 2.20GHz",
        sockets=1,
        cores=2,
        threads=4,
        memory_bytes=24 << 30,
        operating_system="Debian GNU/Linux 12 (bookworm)",
        kernel="Linux 6.1.0-18-amd64",
        architecture="x86_64",
        product="Google Compute Engine",
        is_virtual=True,
        boot_id="5e0d",
    )
    assert machine.in_words == (
        "Intel(R) Xeon(R) CPU @ 2.20GHz, 1 socket, 2 cores, 4 threads, 24.0 GiB, Debian GNU/Linux 12 (bookworm), "
        "Linux 6.1.0-18-amd64, x86_64, virtual machine, Google Compute Engine"
    )


def test_a_container_hides_the_firmware_and_no_more(tmp_path):
    machine = this_machine(tree(tmp_path, {"proc/cpuinfo": xeon(2, flag="")} | MEMORY), kernel())
    assert (machine.sockets, machine.cores, machine.threads) == (1, 1, 2)
    assert (machine.product, machine.is_virtual) == (None, False)
    assert machine.in_words.endswith(", no virtual machine, operating system not known")


def test_cores_of_arm_are_named_by_their_makers(tmp_path):
    cores = "\n".join(NEOVERSE.format(number=number, part="0xd0c") for number in range(2))
    firmware = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "m6g.large\n"}
    files = {"proc/cpuinfo": cores} | cpus("0", "1", package="-1") | firmware
    machine = this_machine(tree(tmp_path, files), kernel(architecture="aarch64"))
    assert (machine.cpu_model, machine.cores, machine.threads) == ("ARM Neoverse-N1", 2, 2)
    assert machine.sockets is None
    assert machine.is_virtual is True
    assert "sockets, memory and operating system not known" in machine.in_words


def test_a_rented_machine_itself_is_not_virtual(tmp_path):
    firmware = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "m6g.metal\n"}
    files = {"proc/cpuinfo": NEOVERSE.format(number=0, part="0xd0c")} | firmware
    assert this_machine(tree(tmp_path, files), kernel()).is_virtual is False


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        # Two kinds of cores in one processor.
        (
            NEOVERSE.format(number=0, part="0xd03") + "\n" + NEOVERSE.format(number=1, part="0xd08"),
            "ARM Cortex-A53 + ARM Cortex-A72",
        ),
        (NEOVERSE.format(number=0, part="0xfff"), "ARM part 0xfff"),
        ("processor : 0\nCPU implementer : 0x99\nCPU part : 0x1\n", "implementer 0x99 part 0x1"),
        # An old kernel, whose cores have no numbers: what they are part of, once for all of them.
        ("processor : 0\nBogoMIPS : 38.4\n\nHardware : BCM2711\n", "BCM2711"),
        ("processor : 0\nmodel name : unknown\n", None),  # gVisor
        ("", None),
    ],
)
def test_the_processor_has_the_name_that_there_is(tmp_path, cpuinfo, name):
    assert this_machine(tree(tmp_path, {"proc/cpuinfo": cpuinfo}), kernel()).cpu_model == name


def test_what_no_file_says_is_not_known(tmp_path):
    machine = this_machine(tmp_path, kernel("4.4.0"))
    assert machine == Machine(kernel="Linux 4.4.0", architecture="x86_64")
    assert machine.in_words == (
        "Linux 4.4.0, x86_64, CPU model, sockets, cores, threads, memory, operating system and whether it "
        "is virtual not known"
    )


def test_this_machine_has_a_processor_and_a_kernel():
    machine = this_machine()
    assert machine.threads >= len(os.sched_getaffinity(0))
    assert machine.kernel == f"Linux {os.uname().release}"
