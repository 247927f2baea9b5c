#!/usr/bin/env bash
# tools/dist_train.sh CONFIG PROCESSES [arguments of train.py]
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each.
# MAX_RESTARTS=n: after a failure, restart up to n times and resume. See docs/distributed.md.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,4s/^# //p' "$0"; exit 2; fi
CONFIG=$1 PROCESSES=$2
shift 2
NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
PORT=${PORT:-29500} MAX_RESTARTS=${MAX_RESTARTS:-0}
if [ "$MAX_RESTARTS" = 0 ]; then
    MEETING=(--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$PORT")
else
    # The first machine keeps the list of those that take part. Others may leave and come back.
    CONF=is_host=$((NODE_RANK == 0)),read_timeout=600,join_timeout=${REJOIN_TIMEOUT:-1800}
    MEETING=(--max-restarts="$MAX_RESTARTS" --rdzv-backend=c10d --rdzv-id="${RUN_ID:-xcit_mm}"
        --rdzv-endpoint="$MASTER_ADDR:$PORT" --rdzv-conf="$CONF")
    # Under which address the others reach this machine; by default, under its host name.
    if [ "$NODE_RANK" = 0 ]; then LOCAL_ADDR=${LOCAL_ADDR:-$MASTER_ADDR}; fi
    if [ -n "${LOCAL_ADDR:-}" ]; then MEETING+=(--local-addr="$LOCAL_ADDR"); fi
    # A new store and port for each restart. torch would reuse the first one, with what lost
    # processes left in it, and a machine that comes back would wait for its address in vain.
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
fi
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes="$NNODES" \
    --nproc_per_node="$PROCESSES" "${MEETING[@]}" \
    "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "$@"
