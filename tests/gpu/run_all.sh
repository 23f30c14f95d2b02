#!/usr/bin/env bash
# Builds torch_cgx in place against the installed torch, runs tests/gpu and the benchmarks of the
# GPU; under nine minutes, without a network.
#
#   tests/gpu/run_all.sh [--no-build]
#
#   OUT     where results go: build.log, tests.xml, tests.log, sanitizer.xml, sanitizer.log,
#           gpu_codec.json, gpu_allreduce.json, summary.json (default: build/gpu)
#   PYTHON  the interpreter that has torch, pytest, setuptools and ninja (default: python3)
#
# A build takes minutes on few cores: where it ends first at its limit of 270 s, run the script
# again, which goes on with what is compiled. --no-build takes what is there.
#
# Status 0 if everything was built, ran and passed. A speed that misses its target is no failure:
# gpu_codec.json says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
out=${OUT:-$PWD/build/gpu}
mkdir -p "$out"
# What an earlier run left would look like a result.
rm -f "$out"/{build.log,tests.xml,tests.log,sanitizer.xml,sanitizer.log,summary.json} \
  "$out"/gpu_{codec,allreduce}.json
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0
started=$SECONDS
names=()
codes=()

# note NAME STATUS
note() {
  names+=("$1")
  codes+=("$2")
  echo "== $1: status $2, after $((SECONDS - started)) s in all"
}

# step NAME LIMIT_SECONDS COMMAND...: notes its status, and goes on.
step() {
  local name=$1 limit=$2 code=0
  shift 2
  echo "== $name"
  timeout --signal=INT --kill-after=10 "$limit" "$@" || code=$?
  note "$name" "$code"
}

summary() {
  local i failed=0 text=""
  for i in "${!names[@]}"; do
    [ "${codes[$i]}" = 0 ] || failed=1
    text+="${text:+, }\"${names[$i]}\": ${codes[$i]}"
  done
  printf '{"seconds": %d, "failed": %d, "status": {%s}}\n' \
    "$((SECONDS - started))" "$failed" "$text" | tee "$out/summary.json"
  exit "$failed"
}

build() {
  # Machine code for the GPU at hand alone.
  local arch
  arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
  CGX_CUDA_ARCHS=${CGX_CUDA_ARCHS:-$arch} CGX_MPI=0 MAX_JOBS=${MAX_JOBS:-$(nproc)} \
    timeout --signal=INT --kill-after=10 270 "$python" setup.py build_ext --inplace \
    > "$out/build.log" 2>&1
}

"$python" -c '
import sys, torch
if torch.version.cuda is None or not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} in {sys.executable} sees no CUDA device")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")'

if [ "${1:-}" != --no-build ]; then
  echo "== build"
  code=0
  build || code=$?
  note build "$code"
  if [ "$code" != 0 ]; then
    tail -n 40 "$out/build.log"
    summary
  fi
fi

export CGX_TEST_GPU=1
pytest=("$python" -m pytest -q -p no:cacheprovider --durations=15)
left() { echo $((510 - (SECONDS - started) < 60 ? 60 : 510 - (SECONDS - started))); }

# Programs under compute-sanitizer are slow and leave most of the GPU to others.
limit=$(($(left) - 60))
code=0
timeout --signal=INT --kill-after=10 "$limit" "${pytest[@]}" --junitxml="$out/sanitizer.xml" \
  tests/gpu/test_sanitizer.py > "$out/sanitizer.log" 2>&1 &
sanitizer=$!
step tests "$limit" "${pytest[@]}" --junitxml="$out/tests.xml" \
  --ignore=tests/gpu/test_sanitizer.py tests/gpu > "$out/tests.log" 2>&1
tail -n 60 "$out/tests.log"
wait "$sanitizer" || code=$?
tail -n 30 "$out/sanitizer.log"
note sanitizer "$code"

quick=()
[ "$(left)" -ge 90 ] || quick=(--quick)
step gpu_codec "$(left)" "$python" benchmarks/gpu_codec.py "${quick[@]}" --json "$out/gpu_codec.json"
[ -f "$out/gpu_codec.json" ] || note "gpu_codec.json" 1
step gpu_allreduce "$(left)" "$python" benchmarks/gpu_allreduce.py --quick \
  --json "$out/gpu_allreduce.json"
[ -f "$out/gpu_allreduce.json" ] || note "gpu_allreduce.json" 1
summary
