#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One node, one rank for each NUMA domain or socket: sbatch scripts/slurm/node.sh [lockstep arguments]
#SBATCH --job-name=lockstep
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
#SBATCH --time=00:20:00
set -euo pipefail
[ $# != 0 ] || set -- train
export OMP_NUM_THREADS=$((${SLURM_CPUS_ON_NODE:?not inside a Slurm job} / ${SLURM_NTASKS_PER_NODE:-1}))
export OMP_PROC_BIND=spread OMP_PLACES=cores
exec srun --cpus-per-task="$OMP_NUM_THREADS" --cpu-bind=cores "${LOCKSTEP:-lockstep}" "$@" --json "lockstep-$SLURM_JOB_ID.json"
