#!/usr/bin/env bash
# torch ddp on 8 devices as 4 nodes x 2: four torchrun agents with two processes each.
# DEVICE=cpu simulates the 8 devices on the CPU; further options of `dpcompare run` may follow.
set -euo pipefail

# exec: dpcompare takes the place of this script, so signals reach it and its exit code is returned.
exec "${DPCOMPARE:-dpcompare}" run --framework torch --mode ddp \
  --nodes 4 --devices-per-node 2 --device "${DEVICE:-auto}" "$@"
