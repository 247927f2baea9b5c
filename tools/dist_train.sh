#!/usr/bin/env bash
# tools/dist_train.sh CONFIG PROCESSES [arguments of train.py]
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,3s/^# //p' "$0"; exit 2; fi
CONFIG=$1 PROCESSES=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$PROCESSES" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "$@"
