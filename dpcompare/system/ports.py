"""Free ports of the loopback interface."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from dpcompare.errors import RequestError


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free on this machine's loopback interface now.

    Raises:
        RequestError: that interface is down, as in a network namespace in which nobody has brought it up.
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
