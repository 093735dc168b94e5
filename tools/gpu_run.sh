#!/bin/bash
# One visit to a machine with a Hopper GPU: checks what has never run on a device, then measures. Needs no Rust and no network there.
#
#     tools/gpu_run.sh build BIN [COMMIT]     # here: what is carried, and the programs of COMMIT, to be measured in turn with these. Put there by
#                                             # hand: BIN/llama.cpp.tar.xz, whose one folder is llama.cpp, or BIN/llama/bin with its benches for
#                                             # the same CUDA (LD_LIBRARY_PATH then names the folder of cublas there), which need no section llama
#     tools/gpu_run.sh build-racecheck BIN    # here: the suite with kernels that racecheck follows (needs nvcc, 5 to 18 minutes)
#     tools/gpu_run.sh BIN [SECTION…]         # there, in the root of the working tree; without sections all of them, in this order
#
# Sections, with the seconds that each may take; the most valuable come first, and none needs another but `compare`:
#
#     llama       -   begins to build llama.cpp, on all cores but two and behind everything else; the script ends when this has (about 300 s),
#                     or after LIMIT seconds (default: 570), and goes on with it in the next call
#     suite     250   the device's tests, all sweeps; those of models need their files (models/, *.npz and *.safetensors among them)
#     faults     60   a mixture of experts that is full of NaN beside good models, all served; and a GPU that is lost on purpose and made anew
#     memcheck  250   compute-sanitizer on every test of the suite (145 s on an H100 with 16 cores)
#     racecheck 530   the same with BIN/suite-racecheck, if it is there, of which the longest are cut; and `ladder check` with a watchdog that waits
#                     for the sanitizer
#     synccheck 170   the same tests (125 s)
#     ladder    180   8B F16 and 1B F16, 1 to 64 sequences, and profiles of the operations; beside the same with launches apart
#     decode    130   one sequence; run 36: 0.6B Q4_0 2,519 tokens/s, 1B Q4_0 3,120, 8B Q4_K 726
#     prompts   100   4,096 tokens of 1B and 8B; run 36: 1B BF16 220,502 tokens/s
#     train     220   updates of adapters; run 36: 1B BF16 69,533 tokens/s with kept activations, 8B 14,813; 8B Q4_K as on a GPU of 14 GiB
#     peft      250   the same updates by PEFT with torch, transformers and peft, if they are there
#     ceiling   140   products of 8B F16 by cuBLAS (with torch) and alone (bench/products.cu), and prompts for seconds, with clocks and watts
#     adapters   90   eight sequences with an adapter each, beside the same without; run 37: 8B BF16 85 %, 1B 73 %, queries and values alone 94 and 90 %
#     formats   170   1B in each format that has never run there: prompts, one sequence and several, and chains of the most used
#     files      60   the files to compare: random weights in real shapes; SHAPES and TYPES choose among them, as in compare_gpu.sh
#     compare   250   brasa and llama.cpp in turn on these files: one sequence, depth, 1 to 64 sequences, start; PARTS chooses among these
#
# ladder, decode, prompts, train and adapters measure each program in turn with those of the same name with -before and -variant in BIN, if they are there.
#
# Where one command may take ten minutes: llama files compare; suite memcheck synccheck; decode prompts train; peft ceiling adapters; ladder formats; racecheck. WORK names
# the folder for files that stay (default: /tmp/brasa-gpu), TESTS those that sanitizers run (an expression; default: all). Everything is printed; nothing
# else should run on the GPU.
set -u
all=(llama suite faults memcheck racecheck synccheck ladder decode prompts train peft ceiling adapters formats files compare)
work=${WORK:-/tmp/brasa-gpu}
limit=${LIMIT:-570}
building=

say() { echo "== $SECONDS s: $*"; }

# Runs a command for at most so many seconds, and tells if it failed.
within() {
    local seconds=$1 status
    shift
    timeout "$seconds" "$@"
    status=$?
    [ $status = 0 ] || echo "-- status $status (124: cut after $seconds s): $*"
    return $status
}

programs=(speed decode_speed train_speed adapter_speed)

# Builds the programs of the working tree in this folder, and copies them with a suffix.
programs_to() {
    cargo build --release -p brasa-cli -p brasa-cuda --bin brasa "${programs[@]/#/--example=}"
    local built=${CARGO_TARGET_DIR:-target}/release program
    for program in brasa "${programs[@]/#/examples/}"; do
        strip -o "$1/$(basename "$program")$2" "$built/$program"
    done
}

suite_to() {
    local suite
    suite=$(cargo test -p brasa-cuda --test suite --no-run 2>&1 | sed -n 's/.*(\(target[^)]*suite-[^)]*\)).*/\1/p')
    strip -o "$1" "$suite"
}

build() {
    mkdir -p "$1"
    local to
    to=$(realpath "$1")
    programs_to "$to" ""
    suite_to "$to/suite"
    pwd > "$to/root"
    if [ -n "$2" ]; then
        git worktree add --detach target/before "$2"
        trap 'git worktree remove --force target/before' EXIT
        (cd target/before && export CARGO_TARGET_DIR=../before-target && programs_to "$to" -before)
    fi
    ls -l "$to"
}

# Each lane waits and arrives for itself, and the kernels' own watchdog waits for the sanitizer.
build_racecheck() {
    mkdir -p "$1"
    kept=$(mktemp -d)
    cp crates/brasa-cuda/kernels/embedded/* "$kept"
    trap 'cp "$kept"/* crates/brasa-cuda/kernels/embedded && rm -r "$kept"' EXIT
    NVCC_APPEND_FLAGS="-lineinfo -DBRASA_EACH_LANE -DBRASA_WATCHDOG_NS=600000000000ull" cargo xtask cuda
    suite_to "$1/suite-racecheck"
    ls -l "$1"
}

# The tests look for models and kernels where they were compiled: a link there leads here.
at_home() {
    local root
    root=$(cat "$bin/root")
    [ -e "$root" ] || { mkdir -p "$(dirname "$root")" && ln -s "$PWD" "$root"; }
}

# Each test in a process of its own, twelve at a time: at most so many seconds each, and so many in all. One line a test; those with a
# report come again at the end, and what they said is in the folder for files that stay.
sanitized() {
    local tool=$1 each=$2 all=$3
    export tool each work suite="$bin/suite"
    [ "$tool" != racecheck ] || [ ! -x "$bin/suite-racecheck" ] || suite="$bin/suite-racecheck"
    "$suite" --list 2> /dev/null | sed -n 's/: test$//p' | grep -v '^lost::' | grep -E "${TESTS:-.}" > "$work/tests"
    BRASA_CUDA=gpu BRASA_SWEEPS=1 within "$all" xargs -P 12 -I{} bash -c '
        said="$work/$tool-$(tr -c "a-z0-9_\n" _ <<< {}).txt"
        timeout "$each" compute-sanitizer --tool "$tool" "$suite" {} --exact --test-threads 1 > "$said" 2>&1
        echo "{}: status $? $(grep -oE "(ERROR|RACECHECK) SUMMARY: .*|test result: [a-zA-Z]+" "$said" | tr "\n" " ")"' < "$work/tests" > "$work/$tool.txt"
    echo "$(wc -l < "$work/$tool.txt") of $(wc -l < "$work/tests") tests ended or were cut, $(grep -cE 'SUMMARY: 0 (errors|hazards)' "$work/$tool.txt") without a report; the others:"
    grep -vE 'SUMMARY: 0 (errors|hazards)' "$work/$tool.txt"
}

faults() {
    BRASA_CUDA=gpu within 40 "$bin/suite" lost:: not_numbers:: --nocapture 2>&1 | grep -vE '^$'
    within 60 python3 tools/serving/gpu_faults.py "$bin/brasa"
}
suite() { BRASA_CUDA=gpu BRASA_SWEEPS=1 within 250 "$bin/suite" 2>&1 | grep -vE '^$|^(F16|BF16|Q[0-9])'; }
memcheck() { sanitized memcheck 130 250; }
synccheck() { sanitized synccheck 120 170; }

racecheck() {
    sanitized racecheck 220 470
    say "ladder check under racecheck"
    (cd crates/brasa-cuda && nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static \
        -DBRASA_WATCHDOG_NS=600000000000ull bench/ladder.cu -o "$work/ladder") || return
    within 60 compute-sanitizer --tool racecheck "$work/ladder" check 2>&1 | tail -n 40
}

# A program, for at most so many seconds, behind those of the same name that it is compared with.
in_turn() {
    local seconds=$1 name=$2 program
    shift 2
    for program in "$bin/$name-before" "$bin/$name-variant" "$bin/$name"; do
        [ -x "$program" ] || continue
        say "$(basename "$program") $*"
        within "$seconds" "$program" "$@" 2>&1
    done
}

ladder() {
    local model
    for model in 8b 1b; do
        in_turn 60 speed $model F16 --profile | grep -vE 'embedding|a prompt'
        say "$model F16, launches apart"
        within 60 "$bin/speed" "$model" F16 --separate 2>&1 | grep -E '^(pp|tg)'
    done
}

decode() {
    local case
    for case in '0.6b Q4_0' '8b Q4_K' '1b Q4_0' '1b F16' '1b Q8_0' '1b Q6_K' '8b Q6_K'; do in_turn 30 decode_speed $case; done
}

prompts() {
    local case
    for case in '1b BF16' '8b BF16' '1b Q4_K'; do in_turn 40 speed $case | grep -E '^(==|--|pp)'; done
}

train() {
    local case
    for case in '1b BF16 --keep' '8b BF16 --keep' '1b Q4_K --keep' '8b Q4_K --keep' '8b BF16 --products --memory 30' '8b Q4_K --products --memory 24' \
        '8b Q4_K' '8b Q4_K --memory 14'; do
        in_turn 45 train_speed $case | grep -v '^update [1-3]:'
    done
}

peft() {
    local case
    for case in '1b' '1b --compile' '8b' '8b --recompute'; do within 100 python3 tools/train/peft_gpu.py $case 2>&1 | tail -n 1; done
}

ceiling() {
    (cd crates/brasa-cuda && nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static bench/products.cu -o "$work/products") || return
    nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader -lms 500 > "$work/watts.txt" &
    local watts=$! case
    within 40 "$work/products" 0.4
    within 40 python3 tools/cublas_products.py --models 8b --rows 2048,4096 --type float16
    for case in '8b F16' '8b BF16'; do within 30 "$bin/speed" $case --sustained; done
    kill $watts
    echo "clocks and watts above 500 W: $(awk -F', ' '$2 + 0 > 500 { n++; clock += $1; watt += $2 } END { if (n) printf "%d MHz, %d W in %d samples", clock / n, watt / n, n }' "$work/watts.txt")"
}

adapters() {
    local case
    for case in '8b BF16 16 8' '8b BF16 16 8 --qv' '1b BF16 16 8' '1b BF16 16 8 --qv'; do in_turn 40 adapter_speed $case; done
}

formats() {
    local format
    for format in Q4_K Q5_K Q3_K MLX4 Q4_1 IQ4_XS Q5_0 Q5_1 IQ4_NL Q2_K MLX8; do
        within 25 "$bin/speed" 1b "$format" 2>&1 | grep -E 'uploaded|pp|tg of (1|4|16) '
    done
    for format in Q4_K Q5_K Q3_K MLX4 IQ4_XS; do
        within 20 "$bin/decode_speed" 1b "$format"
    done
}

build_llama() {
    local cores
    cores=$(($(nproc) > 4 ? $(nproc) - 2 : $(nproc)))
    [ -d "$work/llama.cpp" ] || tar -xf "$bin/llama.cpp.tar.xz" -C "$work" || return
    nice -n 10 cmake -S "$work/llama.cpp" -B "$work/llama" -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DCMAKE_BUILD_TYPE=Release &&
        nice -n 10 cmake --build "$work/llama" -j "$cores" --target llama-bench llama-batched-bench
}

llama() {
    set -m  # a group of its own, which can be ended as one
    build_llama > "$work/llama.log" 2>&1 &
    building=$!
    set +m
}

# Waits for what `llama` began, and ends it where there is no time left: what was compiled stays.
finish_llama() {
    [ -n "$building" ] || return 0
    say "waiting for llama.cpp"
    while kill -0 "$building" 2> /dev/null && [ "$SECONDS" -lt "$limit" ]; do sleep 1; done
    if kill -0 "$building" 2> /dev/null; then
        kill -- "-$building"
        echo "-- not built yet: run the section llama again"
    fi
    wait "$building" || echo "-- llama.cpp: status $?"
    building=
    tail -n 2 "$work/llama.log"
}

files() {
    local case
    for case in llama-3.2-1b:1b:F16 llama-3.2-1b:1b:Q4_0 llama-3.2-1b:1b:Q8_0 llama-3.2-1b:1b:Q4_K_M qwen3-0.6b:0.6b:F16 qwen3-0.6b:0.6b:Q4_0 \
        qwen3-0.6b:0.6b:Q8_0 qwen3-0.6b:0.6b:Q4_K_M llama-3.1-8b:8b:F16 llama-3.1-8b:8b:Q4_K_M qwen3-30b-a3b:30b-a3b:Q4_K_M; do
        local shape name type
        IFS=: read -r shape name type <<< "$case"
        [[ " ${SHAPES:-$name} " == *" $name "* && " ${TYPES:-$type} " == *" $type "* ]] || continue
        [ -f "$work/$name-$type.gguf" ] || within 60 python3 tools/random_gguf.py "$work/$name-$type.gguf" --shape "$shape" --type "$type"
    done
    ls -l "$work"
}

compare() {
    within 60 sync
    local llama=$work/llama/bin
    [ ! -d "$bin/llama/bin" ] || llama=$bin/llama/bin
    tools/compare_gpu.sh "$bin/brasa" "$llama" "$work"
}

[ $# -ge 1 ] || { sed -n '2,/^set/p' "$0" | grep '^#'; exit 2; }
if [ "$1" = build ] || [ "$1" = build-racecheck ]; then
    set -e
    "${1/-/_}" "${2:?the folder for what is carried}" "${3:-}"
    exit
fi
bin=$(realpath "$1")
shift
for section in "$@"; do
    [[ " ${all[*]} " == *" $section "* ]] || { echo "no section $section: ${all[*]}"; exit 2; }
done
mkdir -p "$work"
[ ! -f "$bin/root" ] || at_home
nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,driver_version --format=csv,noheader
for section in "${@:-${all[@]}}"; do
    # Nothing is timed beside a compiler.
    [[ " ladder decode prompts train peft ceiling adapters formats compare " != *" $section "* ]] || finish_llama
    say "section $section"
    $section
done
finish_llama
say "done"
