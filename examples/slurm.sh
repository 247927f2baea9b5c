#!/usr/bin/env bash
# sbatch examples/slurm.sh CONFIG WORK_DIR [arguments of train.py]
# Run it in the folder of this repository. A lost process is restarted by torchrun; after the loss of
# a machine, or a preemption, Slurm starts the job again. Either way, the run resumes.
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=40
#SBATCH --requeue --open-mode=append
set -euo pipefail
CONFIG=$1 WORK_DIR=$2
shift 2
MACHINES=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${MACHINES%%$'\n'*} NNODES=$SLURM_NNODES RUN_ID=$SLURM_JOB_ID MAX_RESTARTS=${MAX_RESTARTS:-100}
export PORT=${PORT:-$((20000 + SLURM_JOB_ID % 10000))} # other jobs may share the machine
# One launcher per machine, each with the processes of that machine.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec tools/dist_train.sh "$@"' bash \
    "$CONFIG" "${SLURM_GPUS_ON_NODE:-1}" --work-dir "$WORK_DIR" "$@"
