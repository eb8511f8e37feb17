#!/bin/bash
# LMCache's ways to a remote store, to redis-server and to tarn-server, beside TarnConnector:
# lmcache.py says what each does.
. "$(dirname "$0")/lib.sh"
need "$REDIS" "$TARN" /usr/bin/python3

sizes=$([ -n "$QUICK" ] && echo 4m || echo 4m,32m)
TARN=$(realpath "$TARN") /usr/bin/python3 utils/bench/lmcache.py --sizes "$sizes" \
    --rounds "$([ -n "$QUICK" ] && echo 1 || echo "$ROUNDS")"
