"""Ports that stay those of a test until it uses them."""

import socket
from contextlib import ExitStack, contextmanager


@contextmanager
def held_ports(count):
    """Ports on which servers that a test starts may listen within the context, and nothing else on this machine.

    They are bound, not listened on: Linux lets another socket listen there if both have SO_REUSEADDR, as those of torch
    and gRPC have, and gives the port to no socket that asks for any.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("", 0))
        yield [each.getsockname()[1] for each in sockets]
