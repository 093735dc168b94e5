#!/bin/bash
# Times Brasa and whisper.cpp in turn on the same files: the tables of docs/performance/speech.md.
#
#     tools/speech/compare.sh SPEECH_SPEED WHISPER_BENCH FILE.bin…
#
# SPEECH_SPEED is the example of that name (cargo build --release -p brasa --example speech_speed), WHISPER_BENCH whisper.cpp's program.
# FILEs come from `brasa quantize`, e.g. of the folders that random_whisper.py writes. THREADS (default 2) and ROUNDS (default 3) may be set.
# A token of whisper.cpp is the mean of 256, one of ours of 100, both from the first on. Nothing else should run on the machine.
set -u
ours=$1 theirs=$2
shift 2
threads=${THREADS:-2}
for file in "$@"; do
    for _ in $(seq "${ROUNDS:-3}"); do
        "$theirs" -m "$file" -t "$threads" 2>&1 | awk -v file="$(basename "$file")" '
            /encode time/ { encode = $5 } /decode time/ { token = substr($0, index($0, "(") + 1) + 0 }
            END { printf "%-22s whisper.cpp  encoder %8.1f ms  token %6.2f ms\n", file, encode, token }'
        "$ours" "$file" "$threads" 2 | awk -v file="$(basename "$file")" '
            /^mel/ { mel = $5 } /^encoder/ { encode = $5 } /^a token/ { token = $3 } /^a step/ { beams = $6 }
            END { printf "%-22s brasa        encoder %8.1f ms  token %6.2f ms  5 beams %6.2f ms  mel %.1f ms\n", file, encode, token, beams, mel }'
    done
done
