#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A strong or weak scaling series: scripts/flux/scaling.sh strong|weak MOST_RANKS [train's arguments]
set -euo pipefail
[ $# -ge 2 ] || { echo "scaling.sh: $# arguments; expected strong|weak MOST_RANKS [train's arguments]" >&2; exit 2; }
kind=$1 most=$2
shift 2
case $kind in strong | weak) ;; *) echo "scaling.sh: $kind; expected strong or weak" >&2; exit 2 ;; esac
for ((ranks = 1; ranks <= most; ranks *= 2)); do
  size=${BATCH:-256}
  [ "$kind" = strong ] || size=$((size * ranks))
  flux run --ntasks="$ranks" --cores-per-task="${CORES:-1}" -o cpu-affinity=per-task --env=OMP_NUM_THREADS="${CORES:-1}" \
    "${LOCKSTEP:-lockstep}" train --batch "$size" "$@" --json "lockstep-$kind-$$-$ranks.json"
done
