#!/bin/sh
# Makes the keys and the self-signed certificates of the tests of TLS, which are valid from 2020 to 2120.
#
# usage: tools/golden/tls_keys.sh
set -eu
cd "$(dirname "$0")/../../crates/brasa-tls/tests/keys"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
cat > "$scratch/ca.cnf" <<END
[ca]
default_ca = own
[own]
database = $scratch/index
serial = $scratch/serial
new_certs_dir = $scratch
default_md = sha256
policy = any
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
END

# make NAME OPTION…: a key, and a certificate for it.
make() {
    name=$1
    shift
    : > "$scratch/index"
    echo 01 > "$scratch/serial"
    openssl genpkey "$@" -out "$name.key.pem"
    openssl req -new -key "$name.key.pem" -subj "/CN=brasa test" -out "$scratch/request"
    openssl ca -batch -selfsign -config "$scratch/ca.cnf" -keyfile "$name.key.pem" -in "$scratch/request" \
        -startdate 20200101000000Z -enddate 21200101000000Z -notext -out "$name.pem"
}

make p256 -algorithm EC -pkeyopt ec_paramgen_curve:P-256
make ed25519 -algorithm ed25519
make rsa -algorithm RSA -pkeyopt rsa_keygen_bits:2048
openssl ec -in p256.key.pem -out p256.sec1.pem
openssl rsa -in rsa.key.pem -traditional -out rsa.pkcs1.pem
openssl pkey -in p256.key.pem -aes128 -passout pass:brasa -out encrypted.key.pem
