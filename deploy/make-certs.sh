#!/usr/bin/env bash
# Makes a certificate for the TLS proxy, and an authority that vouches for it:
#
#     deploy/make-certs.sh [DIRECTORY]     (deploy/certs if it is not said)
#
# It leaves ca.pem, which callers trust, and server.pem and server.key, which the proxy shows. The
# authority's own key is thrown away, so that nothing else can be signed with it. Certificates that
# are there already are left alone; remove the directory for new ones. They are for trying things
# out: in earnest, put your own in their place.
set -euo pipefail

fail() {
    echo "make-certs: $1" >&2
    exit 1
}

command -v openssl >/dev/null || fail "there is no openssl; install it"
directory=${1:-$(dirname "$0")/certs}
if [[ -e $directory/server.pem ]]; then
    exit 0
fi

umask 077
mkdir -p "$directory"
work=$(mktemp -d "$directory/making.XXXXXX")
trap 'rm -rf "$work"' EXIT

cat >"$work/openssl.cnf" <<'END'
[req]
distinguished_name = name
prompt = no
[name]
CN = Holdfast trial
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
# `proxy` is its name among the containers.
subjectAltName = DNS:localhost, DNS:proxy, IP:127.0.0.1, IP:::1
END

ask_openssl() {
    openssl "$@" >>"$work/log" 2>&1 || fail "openssl $1 failed: $(tail -n 1 "$work/log")"
}

new_key=(-newkey ec -pkeyopt "ec_paramgen_curve:prime256v1" -nodes)
ask_openssl req -x509 -config "$work/openssl.cnf" -extensions authority "${new_key[@]}" \
    -days 365 -subj "/CN=Holdfast trial authority" -keyout "$work/ca.key" -out "$work/ca.pem"
ask_openssl req -config "$work/openssl.cnf" "${new_key[@]}" \
    -subj "/CN=localhost" -keyout "$work/server.key" -out "$work/server.csr"
ask_openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" \
    -set_serial "0x$(openssl rand -hex 8)" -days 365 \
    -extfile "$work/openssl.cnf" -extensions server -out "$work/server.pem"

# What is public may be read by whoever runs inside a container. The last move is what says that
# all is there.
chmod 644 "$work/ca.pem" "$work/server.pem"
mv "$work/ca.pem" "$work/server.key" "$directory"
mv "$work/server.pem" "$directory"
