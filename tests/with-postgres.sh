#!/usr/bin/env bash
# Runs a command with HOLDFAST_TEST_POSTGRES_URL naming a PostgreSQL server on which the command may
# create and drop databases:
#
#     tests/with-postgres.sh cargo test
#
# It takes the server that the variable names already, else one that answers on this machine and
# lets us create databases, else a private one that lives as long as the command, for which it
# installs Debian's package if need be. The tests are never run without a server.
#
# Tests of servers whose clocks are wrong need `faketime`, which is installed likewise.
set -euo pipefail

# shellcheck source=tests/debian.sh
source "$(dirname "$0")/debian.sh"

fail() {
    echo "with-postgres: $1" >&2
    exit 1
}

# Does the server at this address let us create databases, and drop them with those who use them?
may_create_databases() {
    local answer
    answer=$(PGCONNECT_TIMEOUT=3 psql --no-psqlrc --no-password --tuples-only --no-align "$1" --command "
        select (rolsuper or rolcreatedb) and current_setting('server_version_num')::int >= 130000
        from pg_roles where rolname = current_user" 2>/dev/null) && [[ $answer == t ]]
}

# The address of a server that answers here, if there is one.
local_server() {
    local user place
    command -v psql >/dev/null || return 1
    for user in postgres "$(id -un)"; do
        for place in "127.0.0.1:5432/postgres" "%2Fvar%2Frun%2Fpostgresql/postgres"; do
            if may_create_databases "postgres://$user@$place"; then
                echo "postgres://$user@$place"
                return
            fi
        done
    done
    return 1
}

# The directory of PostgreSQL's programs: the newest of Debian's, or wherever the shell finds them.
programs() {
    local newest
    newest=$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort --version-sort | tail -n 1)
    newest=${newest:-$(command -v initdb)} && dirname "$(readlink -f "$newest")"
}

# PostgreSQL refuses to run as root; then everything that touches its files runs as somebody else,
# who may not be allowed to see where we are.
as_server() (
    cd "$directory"
    if [[ -n $server_user ]]; then
        runuser -u "$server_user" -- "$@"
    else
        "$@"
    fi
)

stop_private_server() {
    as_server "$bin/pg_ctl" stop --pgdata "$directory/data" --mode immediate >/dev/null 2>&1 || true
    rm -rf "$directory"
}

start_private_server() {
    local port password
    directory=$(mktemp -d "$target/postgres.XXXXXX")
    trap stop_private_server EXIT
    if [[ -n $server_user ]] && ! runuser -u "$server_user" -- test -x "$target"; then
        # The project lies where that user may not go.
        rmdir "$directory"
        directory=$(mktemp -d)
    fi

    # The port is open to everyone on this machine, and a superuser may run programs.
    password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    echo "$password" >"$directory/password"
    [[ -z $server_user ]] || chown -R "$server_user" "$directory"
    as_server "$bin/initdb" --pgdata "$directory/data" --username postgres --auth scram-sha-256 \
        --encoding UTF8 --locale C.UTF-8 --pwfile "$directory/password" >"$log" 2>&1 ||
        fail "PostgreSQL's initdb failed; see $log, or set HOLDFAST_TEST_POSTGRES_URL"

    # A port is free if the server can bind it; below 32768 the system hands none out meanwhile.
    for _ in {1..20}; do
        port=$((20000 + RANDOM % 12000))
        if as_server "$bin/pg_ctl" start --wait --pgdata "$directory/data" \
            --log "$directory/log" --options "-c listen_addresses=127.0.0.1 -c port=$port \
                -c unix_socket_directories= -c max_connections=300" >>"$log" 2>&1; then
            export HOLDFAST_TEST_POSTGRES_URL="postgres://postgres:$password@127.0.0.1:$port/postgres"
            return
        fi
    done
    cp "$directory/log" "$log"
    fail "a private PostgreSQL does not start; see $log, or set HOLDFAST_TEST_POSTGRES_URL"
}

[[ $# -gt 0 ]] || fail "say which command to run, as in: tests/with-postgres.sh cargo test"

target=$(cd "$(dirname "$0")/.." && pwd)/target
mkdir -p "$target"
log=$target/with-postgres.log
# Without it the tests that need it fail and say so; the others need not wait for it.
command -v faketime >/dev/null || install_debian_package faketime "$log" ||
    echo "with-postgres: there is no faketime; install Debian's package faketime" >&2

if [[ -n ${HOLDFAST_TEST_POSTGRES_URL:-} ]]; then
    exec "$@"
fi
if HOLDFAST_TEST_POSTGRES_URL=$(local_server); then
    export HOLDFAST_TEST_POSTGRES_URL
    exec "$@"
fi

bin=$(programs) || { install_debian_package postgresql "$log" && bin=$(programs); } ||
    fail "there is no PostgreSQL to test on: install Debian's package postgresql, or set HOLDFAST_TEST_POSTGRES_URL to a server that lets us create databases"
server_user=
if [[ $(id -u) == 0 ]]; then
    server_user=$(id -un postgres 2>/dev/null || echo nobody)
fi
start_private_server
# Ended by a signal, this script still ends by way of its EXIT trap.
trap 'exit 130' INT
trap 'exit 143' TERM
"$@"
