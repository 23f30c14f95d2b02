#!/usr/bin/env bash
# Builds torch_cgx in place against the installed torch, runs tests/gpu and the benchmarks of the
# GPU; under nine minutes, without a network.
#
#   tests/gpu/run_all.sh [--no-build]
#
#   OUT     where results go: versions.txt, build.log, tests.xml, tests.log, for each tool of
#           compute-sanitizer TOOL.xml and TOOL.log, gpu_codec.json, gpu_allreduce.json,
#           summary.json (default: build/gpu)
#   PYTHON  the interpreter that has torch, pytest, setuptools and ninja (default: python3)
#
# A build takes minutes on few cores: where it ends first at its limit of 270 s, run the script
# again, which goes on with what is compiled. --no-build takes what is there, and ends at once if
# that does not import, or has no kernels for the GPU. CGX_TEST_GPU=fake: on the fake device.
#
# Status 0 if everything was built, ran and passed. A speed that misses its target is no failure:
# gpu_codec.json says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
out=${OUT:-$PWD/build/gpu}
mkdir -p "$out"
# What an earlier run left would look like a result.
rm -f "$out"/{versions.txt,build.log,summary.json} "$out"/gpu_{codec,allreduce}.json \
  "$out"/{tests,program,memcheck,racecheck,synccheck}.{xml,log}
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

"$python" -m tests.gpu.machine versions | tee "$out/versions.txt" || true
"$python" -m tests.gpu.machine device

if [ "${1:-}" != --no-build ]; then
  echo "== build"
  code=0
  build || code=$?
  note build "$code"
  if [ "$code" != 0 ]; then
    tail -n 40 "$out/build.log"
    summary
  fi
else
  step prebuilt 120 "$python" -m tests.gpu.machine prebuilt
  [ "${codes[-1]}" = 0 ] || summary
fi

export CGX_TEST_GPU=${CGX_TEST_GPU:-1}
pytest=("$python" -m pytest -q -p no:cacheprovider --durations=15)
left() { echo $((510 - (SECONDS - started) < 60 ? 60 : 510 - (SECONDS - started))); }

# Programs under compute-sanitizer are slow and leave most of the GPU to others. Each tool is a run of
# its own with its share of the time that is left: one that is too slow takes nothing from the others.
limit=$(($(left) - 60))
tools=(program memcheck racecheck synccheck)
sanitize() {
  local end=$((SECONDS + limit)) i tool each test code
  for i in "${!tools[@]}"; do
    tool=${tools[$i]} code=0
    each=$(((end - SECONDS) / (${#tools[@]} - i)))
    [ "$each" -ge 10 ] || each=10
    test="test_nothing_is_reported[$tool]"
    [ "$tool" != program ] || test=test_the_program_runs_by_itself
    # The test itself gives up first, and says what the tool has said.
    CGX_SANITIZER_SECONDS=$((each > 20 ? each - 10 : each)) \
      timeout --signal=INT --kill-after=10 "$((each + 20))" "${pytest[@]}" \
      --junitxml="$out/$tool.xml" "tests/gpu/test_sanitizer.py::$test" > "$out/$tool.log" 2>&1 || code=$?
    echo "$code" > "$out/$tool.status"
  done
}
sanitize &
sanitizer=$!
step tests "$limit" "${pytest[@]}" --junitxml="$out/tests.xml" \
  --ignore=tests/gpu/test_sanitizer.py tests/gpu > "$out/tests.log" 2>&1
tail -n 60 "$out/tests.log"
wait "$sanitizer" || true
for tool in "${tools[@]}"; do
  tail -n 15 "$out/$tool.log"
  note "$tool" "$(cat "$out/$tool.status" 2> /dev/null || echo 1)"
  rm -f "$out/$tool.status"
done

# Nothing is to be measured there.
[ "$CGX_TEST_GPU" != fake ] || summary

quick=()
[ "$(left)" -ge 90 ] || quick=(--quick)
step gpu_codec "$(left)" "$python" benchmarks/gpu_codec.py "${quick[@]}" --json "$out/gpu_codec.json"
[ -f "$out/gpu_codec.json" ] || note "gpu_codec.json" 1
step gpu_allreduce "$(left)" "$python" benchmarks/gpu_allreduce.py --quick \
  --json "$out/gpu_allreduce.json"
[ -f "$out/gpu_allreduce.json" ] || note "gpu_allreduce.json" 1
summary
