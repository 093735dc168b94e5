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

ask 200 /
ask 200 /assets/app.js
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
    ask 200 /chat/completions "{$chat, \"stream\": $stream, \"n\": 2, \"logprobs\": true, \"top_logprobs\": 3}"
    ask 200 /v1/completions "{\"prompt\": \"ember\", \"max_tokens\": 4, \"stream\": $stream}"
    ask 200 /v1/responses "{\"input\": \"ember?\", \"max_output_tokens\": 4, \"stream\": $stream}"
    ask 200 /v1/messages "{$chat, \"stream\": $stream}"
    ask 200 /completion "{\"prompt\": \"ember\", \"n_predict\": 4, \"stream\": $stream}"
    ask 200 /completions "{\"prompt\": \"ember\", \"n_predict\": 4, \"stream\": $stream}"
done

# The last event of each form of stream.
last() {
    event=$(curl -sN "$url$2" -d "$3" | sed -n 's/^data: //p' | tail -n 1)
    case $event in
    *"$1"*) count=$((count + 1)) ;;
    *) echo "curl: $2: the last event is $event, expected $1"; exit 1 ;;
    esac
}

last '[DONE]' /v1/chat/completions "{$chat, \"stream\": true, \"stream_options\": {\"include_usage\": true}}"
last '[DONE]' /v1/completions '{"prompt": "ember", "max_tokens": 4, "stream": true}'
last '"response.incomplete"' /v1/responses '{"input": "ember?", "max_output_tokens": 4, "stream": true}'
last '"message_stop"' /v1/messages "{$chat, \"stream\": true}"
last '"stop":true' /completion '{"prompt": "ember", "n_predict": 4, "stream": true}'

ask 200 /v1/completions '{"prompt": "ember", "echo": true, "logprobs": 1, "max_tokens": 0}'
ask 200 /v1/chat/completions "{$chat, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"integer\"}}}}"
ask 200 /v1/completions '{"prompt": "ember", "max_tokens": 4, "grammar": "root ::= \"a\" | \"b\""}'
ask 200 /v1/chat/completions/input_tokens "{$chat}"
ask 200 /v1/responses/input_tokens '{"input": "ember?"}'
ask 200 /v1/messages/count_tokens "{$chat}"
ask 200 /tokenize '{"content": "ember", "with_pieces": true}'
ask 200 /v1/tokenize '{"text": "ember"}'
ask 200 /detokenize '{"tokens": [1, 2]}'
ask 200 /apply-template "{$chat}"

ask 200 /v1/embeddings '{"input": ["ember", [1, 2]]}'
ask 200 /v1/embeddings '{"input": "ember", "encoding_format": "base64"}'
ask 200 /embedding '{"content": "ember"}'
ask 200 /embeddings '{"content": "ember", "embd_normalize": -1}'
for path in /v1/rerank /v1/reranking /rerank /reranking; do
    ask 200 $path '{"query": "coal", "documents": ["ember", {"text": "bird"}], "top_n": 1}'
done
ask 200 /rerank '{"query": "coal", "texts": ["ember", "bird"], "return_text": true}'

ask 200 '/slots/0?action=save' '{"filename": "ember.slot"}'
ask 200 '/slots/1?action=restore' '{"filename": "ember.slot"}'
ask 200 '/slots/1?action=erase' '{}'
ask 400 '/slots/0?action=save' '{"filename": "../ember.slot"}'
ask 404 '/slots/0?action=restore' '{"filename": "nothing.slot"}'
ask 400 '/slots/99?action=erase' '{}'
ask 400 '/slots/0?action=melt' '{}'

ask 200 /models/unload '{"model": "lexicon-qwen3"}'
ask 200 /models/load '{"model": "lexicon-qwen3"}'
ask 200 /v1/models/unload '{"model": "lexicon-qwen3"}'
ask 200 /tokenize '{"content": "loads the model again"}'
ask 200 /v1/models/load '{"model": "lexicon-qwen3"}'
ask 403 /v1/models/load '{"path": "/etc/passwd"}'

# Wrong requests.
for path in /v1/chat/completions /v1/chat/completions/input_tokens /v1/messages /v1/messages/count_tokens /v1/responses \
    /v1/responses/input_tokens /v1/completions /completion /infill /v1/embeddings /embedding /v1/rerank /rerank /tokenize \
    /v1/tokenize /detokenize /apply-template /models/load /models/unload /v1/models/load /v1/models/unload; do
    ask 400 $path '{'
    ask 400 $path '[]'
    ask 400 $path '{}'
done
for path in /v1/chat/completions /v1/messages /v1/responses /v1/completions /completion /infill /tokenize /v1/embeddings \
    /v1/rerank /models/load; do
    ask 405 $path
done
ask 405 /health '{}'
ask 405 /metrics '{}'
ask 400 /v1/chat/completions '{"messages": 7}'
ask 400 /v1/chat/completions "{$chat, \"temperature\": -1}"
ask 400 /v1/chat/completions "{$chat, \"grammar\": \"root ::= (\"}"
ask 400 /v1/chat/completions "{$chat, \"functions\": [{\"name\": \"f\"}]}"
ask 400 /v1/messages "{$chat, \"temperature\": -1}"
ask 400 /v1/responses '{"input": "x", "previous_response_id": "resp_1"}'
ask 400 /v1/completions '{"prompt": [99999999]}'
ask 400 /v1/embeddings '{"input": "x", "dimensions": 7}'
ask 400 /v1/rerank '{"query": "x", "documents": []}'
# The built-in model has no tokens for gaps, the server no adapters, and properties stay.
ask 501 /infill '{"input_prefix": "a", "input_suffix": "b"}'
ask 501 /lora-adapters '[]'
ask 501 /props '{}'
ask 400 /v1/audio/transcriptions '{}'
ask 400 /v1/audio/translations '{}'
for path in /v1/assistants /v1/batches /v1/files /v1/images/generations /v1/realtime /v1/audio/speech /api/chat; do
    ask 404 $path '{}'
done
rm -f /tmp/brasa_answer.$$
echo "curl: $count requests"
