#!/bin/bash
# Measures Brasa and llama.cpp on a GPU in turn, on the same files: the tables of docs/performance/cuda.md.
#
#     tools/compare_gpu.sh BRASA LLAMA_BIN DIR
#
# LLAMA_BIN holds llama-bench and llama-batched-bench (cmake -DGGML_CUDA=ON); DIR holds SHAPE-TYPE.gguf as random_gguf.py makes them, e.g.
# 1b-Q4_0.gguf of the shape llama-3.2-1b. Files that are not there are skipped. Nothing else should run on the GPU. In the environment:
# SHAPES and TYPES choose among files, PARTS among "single depth together start", LLAMA=no leaves llama.cpp out, and BEFORE names another build
# of brasa, which is measured too. A line of llama-bench is the mean, the median and all tokens/s of one test: its first is often slow, so
# compare medians.
set -u
brasa=$1 llama=$2 dir=$3
shapes=${SHAPES:-1b 0.6b 8b 30b-a3b} types=${TYPES:-F16 Q4_0 Q8_0 Q4_K_M} parts=${PARTS:-single depth together start}
has() { [[ " $parts " == *" $1 "* ]]; }
say() { echo "== $SECONDS s: $*"; }
of_brasa() {
    local program
    for program in ${BEFORE:-} "$brasa"; do
        timeout 120 "$program" bench --device cuda --probe-mib 0 "$@" 2>&1 | grep -E "^\| *(pp|tg)|error" | sed "s/^/$(basename "$program") /"
    done
}
of_llama() {
    [ "${LLAMA:-yes}" = no ] || timeout 120 "$llama/llama-bench" -ngl 99 -fa 1 -o jsonl "$@" 2>/dev/null | python3 -c '
import json, statistics, sys
for test in map(json.loads, sys.stdin):
    name = "pp{n_prompt}" if test["n_prompt"] else "tg{n_gen}"
    name += " @ d{n_depth}" if test["n_depth"] else ""
    speeds = test["samples_ts"]
    numbers = statistics.mean(speeds), statistics.median(speeds)
    print("llama.cpp", name.format(**test) + ":", "{:.2f}, {:.2f}, of".format(*numbers), *map(round, speeds))'
}

nvidia-smi --query-gpu=name,clocks.sm,clocks.mem --format=csv,noheader
for shape in $shapes; do
    for type in $types; do
        file=$dir/$shape-$type.gguf
        has single && [ -f "$file" ] || continue
        say "$shape $type"
        of_brasa -m "$file" -p 512,4096 -n 128 -r 5
        of_llama -m "$file" -p 512,4096 -n 128 -r 7
    done
done
for shape in $shapes; do
    file=$dir/$shape-F16.gguf
    [ -f "$file" ] && [[ " 1b 8b " == *" $shape "* ]] || continue
    if has depth; then
        say "$shape F16 at depth 16384"
        of_brasa -m "$file" -p 0 -n 64 -d 16384 -r 3
        of_llama -m "$file" -p 0 -n 64 -d 16384 -r 3
    fi
    has together || continue
    say "$shape F16, sequences together at depth 512"
    of_brasa -m "$file" -p 0 -n 64 -d 512 --n-parallel 1,4,8,16,32,64 -r 2
    [ "${LLAMA:-yes}" = no ] || timeout 120 "$llama/llama-batched-bench" -m "$file" -ngl 99 -fa on -c 40960 -b 2048 -npp 512 -ntg 64 -npl 1,4,8,16,32,64 2>/dev/null | grep "|"
done
file=$dir/1b-Q4_0.gguf
has start && [ -f "$file" ] && say "start of 1b Q4_0" && "$brasa" bench -m "$file" --device cuda --startup -r 5
