#!/bin/sh
# Asks a server with TLS and the key `secret` with curl.
#
# usage: with_curl_securely.sh URL CERTIFICATE
set -eu
url=$1
certificate=$2

# expect WORDS OPTION…: the status of an answer, or curl's exit code, as words.
expect() {
    expected=$1
    shift
    found=$(curl -s -o /dev/null -w '%{http_code} %{http_version}' "$@") || found="exit $?"
    [ "$found" = "$expected" ] || { echo "curl $*: $found, expected $expected"; exit 1; }
}

for version in --tlsv1.2 --tlsv1.3; do
    expect '200 1.1' --cacert "$certificate" $version --tls-max "${version#--tlsv}" "$url/health"
done
expect '200 1.1' --cacert "$certificate" --http2 -H 'authorization: Bearer secret' "$url/v1/models"
expect '200 1.1' --cacert "$certificate" -H 'x-api-key: secret' "$url/v1/models"
expect '401 1.1' --cacert "$certificate" "$url/v1/models"
expect '401 1.1' --cacert "$certificate" -H 'x-api-key: guess' "$url/v1/models"
# 60: nobody vouches for the certificate. 1: what a client without TLS gets is no HTTP but an alert.
expect 'exit 60' --cacert /etc/ssl/certs/ca-certificates.crt "$url/health"
expect 'exit 1' "http${url#https}/health"
answer=$(curl -sN --cacert "$certificate" -H 'x-api-key: secret' "$url/v1/completions" \
    -d '{"prompt": "ember", "max_tokens": 4, "stream": true}')
case $answer in
*'data: [DONE]'*) ;;
*) echo "curl: a stream over TLS without an end: $answer"; exit 1 ;;
esac
echo "curl: TLS and a key"
