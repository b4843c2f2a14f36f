#!/bin/sh
# The main job, end to end: starts a worker daemon on loopback, searches on it, stops it.
# Arguments are passed on to kelites, e.g. `sh experiments/demo/run.sh task=matmul`.
set -eu
BIN=${BIN:-.venv/bin}
state=$(mktemp -d)
"$BIN/kelites-worker" serve --host 127.0.0.1 --port 0 --backend opencl \
  --address-file "$state/address" &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$state"' EXIT
trap 'exit 130' INT TERM

waited=0
while [ ! -s "$state/address" ]; do
  kill -0 "$daemon" 2>/dev/null || { echo "demo: the worker daemon did not start" >&2; exit 1; }
  waited=$((waited + 1))
  [ "$waited" -le 300 ] || { echo "demo: the worker daemon is not ready after 60 s" >&2; exit 1; }
  sleep 0.2
done

"$BIN/kelites" experiment=demo "workers=[$(cat "$state/address")]" "$@"
echo
echo "Open the elites in MLflow:  $BIN/mlflow ui --backend-store-uri sqlite:///mlflow.db"
