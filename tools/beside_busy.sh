#!/bin/sh
# Times engines beside programs that compute, as many as BUSY says (0 1 2), each an endless loop of the shell.
#
# usage: tools/beside_busy.sh MODEL.gguf BRASA… [LLAMA_BENCH]
# Prompts of 256 tokens and 32 generated ones, two threads, in turn, two rounds; a program whose name ends in llama-bench is asked in its own words.
set -eu
model=$1
shift
for round in 1 2; do
    for busy in ${BUSY:-0 1 2}; do
        pids=
        for _ in $(seq "$busy"); do
            while :; do :; done &
            pids="$pids $!"
        done
        trap '[ -z "$pids" ] || kill $pids' EXIT
        for engine in "$@"; do
            case $engine in
            *llama-bench) lines=$("$engine" -m "$model" -p 256 -n 32 -r 3 -t 2 -fa 1 | grep -E 'pp256|tg32' | awk -F'|' '{ print $(NF-2) $(NF-1) }') ;;
            *) lines=$("$engine" bench -m "$model" -p 256 -n 32 -r 3 -t 2 --probe-mib 64 2>/dev/null | grep -E '^. (pp|tg)' | awk -F'|' '{ print $2 $3 }') ;;
            esac
            echo "round $round, $busy busy, $engine:" $lines
        done
        [ -z "$pids" ] || kill $pids
        pids=
    done
done
