#!/bin/sh
# Runs the official clients and curl over every endpoint of a server that it starts, streaming and not.
#
# usage: tools/clients/run.sh [path to brasa]
# Needs: python with `pip install -r tools/requirements/clients.txt`, node with `npm install openai` (NODE_PATH names the folder), curl.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
brasa=${1:-target/release/brasa}
port=${PORT:-8137}
"$brasa" serve --port "$port" --quiet -c 2048 >/dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
url=http://127.0.0.1:$port
for _ in $(seq 100); do
    curl -sf "$url/health" >/dev/null && break
    sleep 0.2
done
sh "$here/with_curl.sh" "$url"
"${PYTHON:-python3}" "$here/openai_python.py" "$url"
"${PYTHON:-python3}" "$here/anthropic_python.py" "$url"
if command -v node >/dev/null; then
    node "$here/openai_javascript.cjs" "$url"
else
    echo "skipped: node is not installed"
fi
kill $server
wait $server
echo "all clients are content"
