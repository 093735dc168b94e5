#!/bin/sh
# Measures Brasa's server and llama-server in turn on the same file: the table of docs/performance/serving.md.
#
# usage: tools/serving/bench.sh MODEL.gguf BRASA [LLAMA_SERVER]
# ROWS chooses rows: "one sixteen poisson many prefix idle". ROUNDS repeats all of them (1), THREADS (2), DEVICE is Brasa's (cpu), REST
# the seconds between a server's first answer and the rows (6): a server that has just begun still asks the system for memory. Poisson arrivals come at 80 % of
# the rate that 16 clients reach with the same mix. Needs python and curl, and a machine that does nothing else.
set -eu
model=$1 brasa=$2 llama=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
rows=${ROWS:-one sixteen poisson many prefix idle}
threads=${THREADS:-2}
device=${DEVICE:-cpu}
port=${PORT:-8139}
url=http://127.0.0.1:$port
server=
trap 'test -z "$server" || kill $server 2>/dev/null || true' EXIT

# load LABEL ARGUMENTS…: one line of JSON; a failed request is shown and does not end the measurement.
load() {
    label=$1
    shift
    python3 "$here/load.py" "$url" --label "$label" "$@" || true
}

# measure NAME COMMAND…: starts a server, runs the rows, ends it.
measure() {
    name=$1
    shift
    "$@" >/dev/null 2>&1 &
    server=$!
    tries=0
    until curl -sf "$url/health" >/dev/null; do
        kill -0 $server 2>/dev/null || { echo "$name has ended: $*" >&2; exit 1; }
        tries=$((tries + 1))
        test $tries -lt 600 || { echo "$name is not ready after a minute" >&2; exit 1; }
        sleep 0.1
    done
    load "$name warm-up" --clients 1 --requests 1 --seed 99 >/dev/null
    sleep "${REST:-6}"
    for row in $rows; do
        case $row in
        one)
            stream="--clients 1 --requests 4 --prompt-words 8 8 --answer-tokens 96 96 --seed 2"
            load "$name one stream" $stream
            # Greedy, as `bench` decodes beside it, in turn, since the speed of memory swings.
            test "$name" != brasa || for _ in 1 2 3 4 5 6; do
                load "brasa one greedy stream" $stream --greedy
                "$brasa" bench -m "$model" --device "$device" -p 0 -n 96 -r 3 -t "$threads" --probe-mib 64 | grep '^| tg'
            done
            ;;
        sixteen) load "$name 16 clients" --clients 16 --requests 32 --seed 3 ;;
        poisson)
            mix="--prompt-words 60 950 --seed 4"
            found=$(load "$name capacity" --clients 16 --requests 16 $mix)
            echo "$found"
            rate=$(echo "$found" | python3 -c 'import json, sys; r = json.load(sys.stdin); print(0.8 * r["tokens_per_s"] / max(1, r["tokens"] / r["requests"]))')
            load "$name Poisson" --rate "$rate" --requests 24 --prompt-words 60 950 --seed 14
            ;;
        many) load "$name 64 clients" --clients 64 --requests 64 --prompt-words 20 60 --answer-tokens 8 24 --seed 5 ;;
        prefix) load "$name common prefix" --prefix-words 1600 --seed 6 ;;
        idle)
            load "$name 4 clients" --clients 4 --requests 8 --prompt-words 20 60 --seed 7
            load "$name 4 clients beside 2,000 idle" --clients 4 --requests 8 --prompt-words 20 60 --seed 8 --idle 2000
            ;;
        *) echo "unknown row $row" >&2; exit 2 ;;
        esac
    done
    kill $server
    wait $server 2>/dev/null || true
    server=
}

ulimit -n 8192 2>/dev/null || true
for _ in $(seq "${ROUNDS:-1}"); do
    measure brasa "$brasa" serve -m "$model" --device "$device" --port "$port" --quiet -t "$threads" --parallel 16 --max-queue 256 -c 4096
    # A slot of llama-server has its share of the context.
    test -z "$llama" || measure llama-server "$llama" -m "$model" --port "$port" -t "$threads" -np 16 -fa on -c 65536
done
