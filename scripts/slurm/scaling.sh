#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A strong or weak scaling series in one allocation: sbatch --nodes=8 scripts/slurm/scaling.sh strong|weak [train's arguments]
# Strong: the same minibatch on ever more ranks (the same results bit by bit). Weak: --batch grows with the ranks.
# Figures: scripts/plot --only scaling lockstep-strong-*.json
#SBATCH --job-name=lockstep-scaling
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
#SBATCH --time=01:00:00
set -euo pipefail
kind=${1:-strong}
shift || true
case $kind in strong | weak) ;; *) echo "scaling.sh: $kind; expected strong or weak" >&2; exit 2 ;; esac
: "${SLURM_JOB_ID:?not inside a Slurm job}"
batch=${BATCH:-256} # weak: of each rank
most=${SLURM_NTASKS:?the job has no number of tasks}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((SLURM_CPUS_ON_NODE / ${SLURM_NTASKS_PER_NODE:-1}))} OMP_PROC_BIND=spread OMP_PLACES=cores
for ((ranks = 1; ranks <= most; ranks *= 2)); do
  nodes=$(((ranks + ${SLURM_NTASKS_PER_NODE:-1} - 1) / ${SLURM_NTASKS_PER_NODE:-1}))
  size=$batch
  [ "$kind" = strong ] || size=$((batch * ranks))
  srun --nodes="$nodes" --ntasks="$ranks" --cpus-per-task="$OMP_NUM_THREADS" --cpu-bind=cores "${LOCKSTEP:-lockstep}" train --batch "$size" "$@" \
    --json "lockstep-$kind-$SLURM_JOB_ID-$ranks.json"
done
