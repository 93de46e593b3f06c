#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One rank a GPU: scripts/flux/gpus.sh NODES GPUS_PER_NODE [lockstep arguments], inside a Flux instance or on its front end.
set -euo pipefail
[ $# -ge 2 ] || { echo "gpus.sh: $# arguments; expected NODES GPUS_PER_NODE [lockstep arguments]" >&2; exit 2; }
nodes=$1 gpus=$2
shift 2
[ $# != 0 ] || set -- train
exec flux run --nodes="$nodes" --ntasks="$((nodes * gpus))" --gpus-per-task=1 --cores-per-task="${CORES:-8}" --exclusive \
  -o gpu-affinity=per-task -o cpu-affinity=per-task --env=OMP_NUM_THREADS="${CORES:-8}" --env=OMP_PROC_BIND=spread \
  "${LOCKSTEP:-lockstep}" "$@" --json "lockstep-flux-$nodes-$gpus-$$.json"
