#!/usr/bin/env bash
# torch ddp on 8 devices as 4 GPUs x 2 nodes: two torchrun agents with four processes each.
# Node 0 gets GPUs 0,1,2,3 and node 1 gets 4,5,6,7. NODES=4 splits them into 4 nodes of 2; it must divide 8.
# It needs 8 GPUs; DEVICE=cpu simulates 8 devices on the CPU; further options of `dpcompare run` may follow.
set -euo pipefail

nodes="${NODES:-2}"
case "$nodes" in
  1 | 2 | 4 | 8) ;;
  *) echo "NODES: received '$nodes', expected 1, 2, 4 or 8, so that 8 devices divide evenly" >&2; exit 2 ;;
esac

# exec: dpcompare takes the place of this script, so signals reach it and its exit code is returned.
exec "${DPCOMPARE:-dpcompare}" run --framework torch --mode ddp \
  --nodes "$nodes" --devices-per-node "$((8 / nodes))" --device "${DEVICE:-gpu}" "$@"
