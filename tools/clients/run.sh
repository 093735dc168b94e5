#!/bin/sh
# Runs the official clients, libraries over them and curl over every endpoint of four servers that it starts, streaming and not: an open
# one, one of text encoders, one of speech, and one with a key and TLS.
#
# usage: tools/clients/run.sh [path to brasa]
# Needs: python with `pip install -r tools/requirements/clients.txt`, node with `npm install openai` (NODE_PATH names the folder), curl.
# LIBRARIES_PYTHON names a python with `pip install -r tools/requirements/client_libraries.txt`; what it lacks is skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
brasa=${1:-target/release/brasa}
port=${PORT:-8137}
scratch=$(mktemp -d)
pids=
trap 'for pid in $pids; do kill "$pid" 2>/dev/null || true; done; rm -r "$scratch"' EXIT

# start URL OPTIONS…: a server that is ready.
start() {
    url=$1
    shift
    "$brasa" serve "$@" --quiet -c 2048 >/dev/null &
    pids="$pids $!"
    for _ in $(seq 100); do
        kill -0 $! || break # its port may be another program's
        curl -skf "$url/health" >/dev/null && return
        sleep 0.2
    done
    echo "the server at $url is not ready"
    exit 1
}

url=http://127.0.0.1:$port
start "$url" --port "$port" --slot-save-path "$scratch"
sh "$here/with_curl.sh" "$url"
"${PYTHON:-python3}" "$here/openai_python.py" "$url"
"${PYTHON:-python3}" "$here/anthropic_python.py" "$url"
if command -v node >/dev/null; then
    node "$here/openai_javascript.cjs" "$url"
else
    echo "skipped: node is not installed"
fi
"${LIBRARIES_PYTHON:-${PYTHON:-python3}}" "$here/libraries.py" "$url"

encoders=$here/../../models/random-encoders
url=http://127.0.0.1:$((port + 2))
start "$url" --port $((port + 2)) -m "$encoders/bert" -m "$encoders/nomic-bert" -m "$encoders/roberta"
"${PYTHON:-python3}" "$here/openai_encoders.py" "$url" "$encoders/bert" "$encoders/nomic-bert" "$encoders/roberta"

whisper=$here/../../models/tiny-whisper
url=http://127.0.0.1:$((port + 3))
start "$url" --port $((port + 3)) -m "$whisper"
"${PYTHON:-python3}" "$here/openai_speech.py" "$url" "$whisper"

keys=$here/../../crates/brasa-tls/tests/keys
secure=https://localhost:$((port + 1))
export SSL_CERT_FILE="$keys/p256.pem"
start "$secure" --port $((port + 1)) --api-key secret --ssl-cert-file "$SSL_CERT_FILE" --ssl-key-file "$keys/p256.key.pem"
sh "$here/with_curl_securely.sh" "$secure" "$SSL_CERT_FILE"
"${PYTHON:-python3}" "$here/with_key.py" "$secure"

for pid in $pids; do
    kill "$pid"
    wait "$pid"
done
pids=
echo "all clients are content"
