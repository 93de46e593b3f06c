#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One rank a GPU, one or several nodes: sbatch --nodes=4 scripts/slurm/gpus.sh [lockstep arguments]
#SBATCH --job-name=lockstep
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=00:20:00
set -euo pipefail
: "${SLURM_JOB_ID:?not inside a Slurm job}"
[ $# != 0 ] || set -- train
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_PROC_BIND=spread OMP_PLACES=cores
exec srun --cpus-per-task="$OMP_NUM_THREADS" --gpus-per-task=1 --gpu-bind=single:1 "${LOCKSTEP:-lockstep}" "$@" --json "lockstep-$SLURM_JOB_ID.json"
