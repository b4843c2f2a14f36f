#!/bin/sh
# Builds the wheel, installs it into a clean venv and runs the commands from outside the repository.
set -eu
BIN=${BIN:-.venv/bin}
PYTHON=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(pwd)
"$BIN/python" -m build --wheel --outdir "$work/dist" . >"$work/build.log" 2>&1 ||
  { cat "$work/build.log"; exit 1; }
"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" "$work"/dist/*.whl
cd "$work"
"$work/venv/bin/kelites" --help >/dev/null
"$work/venv/bin/kelites-elites" task check softmax
"$work/venv/bin/kelites-worker" doctor
"$work/venv/bin/kelites" experiment=smoke budget.evaluations=12 tracking=none run_dir=run
"$work/venv/bin/kelites-elites" list run
echo "wheel check: 1 passed, 0 failed"
