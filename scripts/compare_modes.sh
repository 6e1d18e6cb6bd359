#!/usr/bin/env bash
# All six modes one after the other on the same work, then one table.
#   OUT=DIR       where the run directories go (default: a new one below runs/)
#   DEVICE=cpu    simulate devices on the CPU (default: auto)
#   REPLICAS=N    replicas of the data-parallel modes (default: 2); ddp and multiworker make each a node
# Further options of `dpcompare run` may follow. A mode that fails does not stop the others.
set -uo pipefail

dpcompare="${DPCOMPARE:-dpcompare}"
replicas="${REPLICAS:-2}"
out="${OUT:-runs/compare-$(date +%Y%m%d-%H%M%S)}"
options=(--device "${DEVICE:-auto}" "$@")
child=
status=0
refused=0
done_runs=()

stop() { # end the run in progress and wait until it has cleaned up
  [ -n "$child" ] && kill -TERM "$child" 2> /dev/null && wait "$child"
  exit 130
}
trap stop INT TERM HUP

run() { # FRAMEWORK MODE TOPOLOGY...
  local directory="$out/$1-$2"
  echo "== $1 $2" >&2
  # In the background, so that the trap can act while it runs; its table comes at the end.
  "$dpcompare" run --framework "$1" --mode "$2" "${@:3}" "${options[@]}" --run-dir "$directory" > /dev/null &
  child=$!
  wait "$child"
  local code=$?
  child=
  [ "$code" -ne 0 ] && status=1
  [ "$code" -eq 2 ] && refused=1
  [ -f "$directory/result.json" ] && done_runs+=("$directory")
}

run torch single
run torch dp --devices-per-node "$replicas"
run torch ddp --nodes "$replicas" --devices-per-node 1
run tensorflow single
run tensorflow mirrored --devices-per-node "$replicas"
run tensorflow multiworker --nodes "$replicas" --devices-per-node 1

[ "${#done_runs[@]}" -eq 0 ] && exit "$((status + refused))" # 2: nothing could be started
"$dpcompare" report "${done_runs[@]}" || status=1
echo "run directories: $out" >&2
exit "$status"
