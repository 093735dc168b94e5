#!/bin/sh
# Asks every endpoint with curl and checks the status of each answer.
#
# usage: with_curl.sh URL
set -eu
url=$1
count=0

# ask STATUS PATH [BODY]: GET without a body, POST with one.
ask() {
    if [ $# -gt 2 ]; then
        status=$(curl -sN -o /tmp/brasa_answer.$$ -w '%{http_code}' "$url$2" -H 'content-type: application/json' -d "$3")
    else
        status=$(curl -sN -o /tmp/brasa_answer.$$ -w '%{http_code}' "$url$2")
    fi
    if [ "$status" != "$1" ]; then
        echo "curl: $2 ${3:-}: $status, expected $1"
        cat /tmp/brasa_answer.$$
        exit 1
    fi
    if [ "$status" -ge 400 ]; then
        for part in type message param code; do
            grep -q "\"$part\"" /tmp/brasa_answer.$$ || { echo "curl: $2 ${3:-}: an error without $part"; cat /tmp/brasa_answer.$$; exit 1; }
        done
    fi
    count=$((count + 1))
}

ask 200 /health
ask 200 /v1/health
ask 200 /v1/models
ask 200 /models
ask 200 /v1/models/lexicon-qwen3
ask 200 /props
ask 200 /slots
ask 200 '/slots?fail_on_no_slot=1'
ask 200 /metrics
ask 200 /v1/metrics
ask 200 /lora-adapters
chat='"messages": [{"role": "user", "content": "What does ember mean?"}], "max_tokens": 8'
for stream in false true; do
    ask 200 /v1/chat/completions "{$chat, \"stream\": $stream}"
    ask 200 /v1/completions "{\"prompt\": \"ember\", \"max_tokens\": 4, \"stream\": $stream}"
    ask 200 /v1/responses "{\"input\": \"ember?\", \"max_output_tokens\": 4, \"stream\": $stream}"
    ask 200 /v1/messages "{$chat, \"stream\": $stream}"
    ask 200 /completion "{\"prompt\": \"ember\", \"n_predict\": 4, \"stream\": $stream}"
done
ask 200 /v1/completions '{"prompt": "ember", "echo": true, "logprobs": 1, "max_tokens": 0}'
ask 200 /v1/chat/completions/input_tokens "{$chat}"
ask 200 /v1/responses/input_tokens '{"input": "ember?"}'
ask 200 /v1/messages/count_tokens "{$chat}"
ask 200 /tokenize '{"content": "ember", "with_pieces": true}'
ask 200 /v1/tokenize '{"text": "ember"}'
ask 200 /detokenize '{"tokens": [1, 2]}'
ask 200 /apply-template "{$chat}"
ask 200 /chat/completions "{$chat}"
ask 200 /completions '{"prompt": "ember", "n_predict": 2}'
ask 200 /models/unload '{"model": "lexicon-qwen3"}'
ask 200 /models/load '{"model": "lexicon-qwen3"}'
ask 200 /v1/models/unload '{"model": "lexicon-qwen3"}'
ask 200 /tokenize '{"content": "loads the model again"}'
ask 403 /v1/models/load '{"path": "/etc/passwd"}'
for path in /v1/chat/completions /v1/messages /v1/responses /v1/completions /completion /infill /tokenize /detokenize /apply-template; do
    ask 400 $path '{'
    ask 400 $path '[]'
    ask 400 $path '{}'
    ask 405 $path
done
ask 400 /v1/chat/completions '{"messages": 7}'
ask 400 /v1/chat/completions "{$chat, \"temperature\": -1}"
ask 400 /v1/messages "{$chat, \"temperature\": -1}"
ask 400 /v1/responses '{"input": "x", "previous_response_id": "resp_1"}'
ask 400 /v1/completions '{"prompt": [99999999]}'
# The built-in model has no tokens for gaps.
ask 501 /infill '{"input_prefix": "a", "input_suffix": "b"}'
ask 404 /v1/assistants
ask 501 /props '{}'
rm -f /tmp/brasa_answer.$$
echo "curl: $count requests"
