"""A torchrun whose store listens on one address: `python -m dpcompare.backends.torch.agent <arguments of torchrun>`.

torchrun's store listens on all interfaces even where the master's address is 127.0.0.1, and whoever reaches it can
write into it. A store made on a socket that is bound already, to the address of the master, listens where it does.

And torchrun ends with status 1 however one of its processes has ended; this agent ends as a shell does: with the status
of the first that failed, or 128 and the number of the signal.
"""

from __future__ import annotations

import os
import socket
import sys

from torch.distributed import TCPStore, run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from dpcompare.system.processes import AGENT_PID, SIGNALED
from dpcompare.system.type_names import PassedOn


def bound_store(
    host_name: str, port: int, world_size: int, is_master: bool, *arguments: PassedOn, **options: PassedOn
) -> TCPStore:
    """A TCPStore that listens on the master's address only; its arguments are those of a rendezvous."""
    if not is_master:
        return TCPStore(host_name, port, world_size, is_master, *arguments, **options)
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host_name, port))
    bound.listen(128)
    # The store takes over the descriptor. There is one store per agent, so no other need find it by its port.
    options |= {"multi_tenant": False, "master_listen_fd": os.dup(bound.fileno())}
    return TCPStore(host_name, port, world_size, is_master, *arguments, **options)


if __name__ == "__main__":
    os.environ[AGENT_PID] = str(os.getpid())
    static_tcp_rendezvous.TCPStore = bound_store  # type: ignore[assignment, misc]  # called as the class is
    try:
        run.main()
    except ChildFailedError as failed:
        print(failed, file=sys.stderr)
        status = failed.get_first_failure()[1].exitcode
        sys.exit(status if status >= 0 else SIGNALED - status)
