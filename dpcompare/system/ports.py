"""Addresses and ports by which processes reach each other."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import ExitStack

from dpcompare.errors import RequestError

_SIOCGIFADDR = 0x8915  # netdevice(7)
_ANYWHERE = "192.0.2.1"  # reserved for documentation (RFC 5737)


def local_address(name: str) -> str:
    """The IPv4 address by which others reach this machine, which they know by `name`.

    Where a machine resolves its name to loopback (Debian: 127.0.1.1), it is that of the route out of it; nothing is
    sent.

    Raises:
        RequestError: the name cannot be resolved.
    """
    try:
        address = socket.gethostbyname(name)
        if not address.startswith("127.") or name == address or name == "localhost":
            return address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
            outwards.connect((_ANYWHERE, 9))
            return str(outwards.getsockname()[0])
    except (OSError, UnicodeError) as error:  # UnicodeError: it is not the name of a host at all
        reason = getattr(error, "strerror", error)
        raise RequestError(
            f"hosts: {name!r} cannot be resolved here ({reason}); expected a name or an IPv4 address that all "
            "hosts know"
        ) from None


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address, which collectives are to use; None where none has it."""
    wanted = socket.inet_aton(socket.gethostbyname(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("16sH22x", name.encode()[:15], socket.AF_INET)
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if answer[20:24] == wanted:
                return name
    return None


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free on this machine's loopback interface now.

    Raises:
        RequestError: that interface is down, as in a network namespace in which it was not brought up.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        if sockets:
            _require_reachable(sockets[0])
        return [each.getsockname()[1] for each in sockets]


def _require_reachable(bound: socket.socket) -> None:
    bound.listen(1)
    try:
        with socket.create_connection(bound.getsockname(), timeout=SECONDS_TO_CONNECT):
            return
    except OSError as error:
        raise RequestError(
            f"processes cannot reach each other at {LOOPBACK} ({error}); bring the loopback interface up: `ip link set "
            "lo up`"
        ) from None


SECONDS_TO_CONNECT = 10.0
LOOPBACK = "127.0.0.1"
