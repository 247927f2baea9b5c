#!/usr/bin/env bash
# tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]
# Set GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS as needed.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,3s/^# //p' "$0"; exit 2; fi
PARTITION=$1 JOB_NAME=$2 CONFIG=$3 CHECKPOINT=$4
shift 4
# shellcheck disable=SC2086
exec srun -p "$PARTITION" --job-name="$JOB_NAME" --gres=gpu:"${GPUS_PER_NODE:-8}" \
    --ntasks="${GPUS:-8}" --ntasks-per-node="${GPUS_PER_NODE:-8}" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" \
    --launcher=slurm "$@"
