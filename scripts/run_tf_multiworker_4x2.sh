#!/usr/bin/env bash
# tensorflow multiworker on 8 devices as 4 nodes x 2: four workers with two devices each, and a TF_CONFIG.
# DEVICE=cpu simulates the 8 devices on the CPU; further options of `dpcompare run` may follow.
set -euo pipefail

# exec: dpcompare takes the place of this script, so signals reach it and its exit code is returned.
exec "${DPCOMPARE:-dpcompare}" run --framework tensorflow --mode multiworker \
  --nodes 4 --devices-per-node 2 --device "${DEVICE:-auto}" "$@"
