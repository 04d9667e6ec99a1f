#!/usr/bin/env bash
# Runs Holdfast in its production shape, on this machine: two instances on one PostgreSQL database,
# a queue that wakes up holds, and nginx, which speaks TLS in front of both. Containers do the same
# by docker-compose.yml.
#
#     tests/with-postgres.sh tests/stack.sh           runs it until Ctrl-C
#     tests/with-postgres.sh tests/stack.sh smoke     proves that it works, and ends
#
# Both instances have both roles, api and worker, so that each can stand in for the other. Everything
# has a port, a directory and a database of its own, which are gone when this ends.
#
# HOLDFAST_PROGRAM names the program, HOLDFAST_TEST_POSTGRES_URL a server on which databases may be
# created.
set -euo pipefail

cd "$(dirname "$0")/.."
# shellcheck source=tests/debian.sh
source tests/debian.sh

fail() {
    echo "stack: $1" >&2
    exit 1
}

mode=${1:-run}
[[ $mode == run || $mode == smoke ]] || fail "say nothing, or smoke"

program=${HOLDFAST_PROGRAM:-${CARGO_TARGET_DIR:-target}/debug/holdfast}
server=${HOLDFAST_TEST_POSTGRES_URL:-}
# What the operator has set for a service of their own is not meant for this one.
for name in "${!HOLDFAST_@}"; do
    unset "$name"
done
[[ -x $program ]] || fail "there is no $program; run \`cargo build\` first"
[[ -n $server ]] || fail "HOLDFAST_TEST_POSTGRES_URL names no server; run \`make stack\`, which finds one"
command -v psql >/dev/null || fail "there is no psql; install Debian's package postgresql-client"
command -v curl >/dev/null || fail "there is no curl; install Debian's package curl"

# Debian puts it where only root looks.
PATH=$PATH:/usr/sbin
mkdir -p target
if ! command -v nginx >/dev/null; then
    install_debian_package nginx target/stack-nginx.log ||
        fail "there is no nginx, and it cannot be installed; install Debian's package nginx"
fi

# ---------------------------------------------------------------- what is cleaned up at the end

directory=$(mktemp -d)
database=
declare -A pids=()

psql_on_server() {
    PGCONNECT_TIMEOUT=5 psql --no-psqlrc --no-password --quiet "$server" --command "$1" \
        >>"$directory/psql.log" 2>&1
}

clean_up() {
    local status=$? name log
    trap - EXIT
    trap '' INT TERM
    for name in "${!pids[@]}"; do
        kill -TERM "${pids[$name]}" 2>/dev/null || true
    done
    wait
    if [[ -n $database ]]; then
        psql_on_server "drop database $database with (force)" ||
            echo "stack: the database $database is left behind" >&2
    fi
    if [[ $status != 0 && $mode == smoke ]]; then
        for log in "$directory"/*.log; do
            echo "--- the end of $(basename "$log")" >&2
            tail -n 15 "$log" >&2
        done
    fi
    rm -rf "$directory"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- the parts

# Does anybody listen on this port?
is_taken() {
    (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Sets `ports` to as many neighbouring ports on which nobody listens. Below 32768 the system hands
# none out meanwhile, so that an instance finds its own free again when it is started anew.
find_ports() {
    local count=$1 first port
    for _ in {1..50}; do
        first=$((20000 + RANDOM % 12000))
        ports=()
        for ((port = first; port < first + count; port++)); do
            is_taken "$port" || ports+=("$port")
        done
        [[ ${#ports[@]} != "$count" ]] || return 0
    done
    fail "there are no $count free ports between 20000 and 32000"
}

# Starts a part of the stack, `start NAME COMMAND...`, with its log in a file of that name.
start() {
    local name=$1
    shift
    "$@" >>"$directory/$name.log" 2>&1 &
    pids[$name]=$!
}

# Waits until a URL answers with 200, `await NAME URL`, for as long as that part runs.
await() {
    local name=$1 url=$2
    for _ in {1..400}; do
        if curl --silent --fail --max-time 5 --cacert "$certificates/ca.pem" --output /dev/null "$url"; then
            return
        fi
        kill -0 "${pids[$name]}" 2>/dev/null ||
            fail "$name has ended: $(tail -n 1 "$directory/$name.log")"
        sleep 0.05
    done
    fail "$name does not answer: $(tail -n 1 "$directory/$name.log")"
}

start_database() {
    local name place parameters
    name=holdfast_stack_$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
    psql_on_server "create database $name" ||
        fail "HOLDFAST_TEST_POSTGRES_URL gives no database: $(tail -n 1 "$directory/psql.log")"
    database=$name
    [[ $server =~ ^(postgres(ql)?://[^/?]*)(/[^?]*)?(\?.*)?$ ]] ||
        fail "HOLDFAST_TEST_POSTGRES_URL is no address such as postgres://USER@HOST/DATABASE"
    place=${BASH_REMATCH[1]}
    parameters=${BASH_REMATCH[4]:-}
    export HOLDFAST_DATABASE_URL=$place/$database$parameters
    "$program" migrate >"$directory/migrate.log" 2>&1 ||
        fail "the schema could not be made: $(tail -n 1 "$directory/migrate.log")"
}

start_proxy() {
    local name text
    local -A words=(
        [API_LISTEN]=127.0.0.1:$api_port
        [QUEUE_LISTEN]=127.0.0.1:$queue_tls_port
        [HOLDFAST_1]=127.0.0.1:${instance_ports[1]}
        [HOLDFAST_2]=127.0.0.1:${instance_ports[2]}
        [QUEUE]=127.0.0.1:$queue_port
        [CERTIFICATES]=$certificates
        [ACCESS_LOG]=$directory/access.log
    )
    text=$(<deploy/nginx.conf)
    for name in "${!words[@]}"; do
        text=${text//"\${$name}"/"${words[$name]}"}
    done
    echo "$text" >"$directory/site.conf"
    {
        # As root, its workers would run as somebody who may not enter the directory.
        [[ $(id -u) != 0 ]] || echo "user root;"
        echo "daemon off; worker_processes 2; pid $directory/nginx.pid;"
        echo "error_log stderr warn;"
        echo "events {}"
        echo "http {"
        for name in client_body proxy fastcgi uwsgi scgi; do
            echo "    ${name}_temp_path $directory/$name;"
        done
        echo "    include $directory/site.conf;"
        echo "}"
    } >"$directory/nginx.conf"
    start nginx nginx -p "$directory" -e stderr -c "$directory/nginx.conf"
}

start_queue() {
    start queue "$program" lab emulator --listen "127.0.0.1:$queue_port" \
        --token "$queue_token" --secret "$queue_secret" \
        --push-url "$url/v1/deliveries/rest" --push-ca "$certificates/ca.pem"
}

# Starts one of the instances, 1 or 2, and returns when it can work.
start_instance() {
    start "holdfast-$1" env HOLDFAST_LISTEN="127.0.0.1:${instance_ports[$1]}" "$program" serve
    await "holdfast-$1" "http://127.0.0.1:${instance_ports[$1]}/readyz"
}

# Has an instance finish what it has begun, and starts it anew.
restart_instance() {
    local pid=${pids[holdfast-$1]}
    kill -TERM "$pid"
    wait "$pid" || fail "holdfast-$1 did not end well: $(tail -n 1 "$directory/holdfast-$1.log")"
    start_instance "$1"
}

start_stack() {
    certificates=$directory/certs
    deploy/make-certs.sh "$certificates"
    find_ports 5
    api_port=${ports[0]} queue_tls_port=${ports[1]} queue_port=${ports[2]}
    instance_ports=(none "${ports[3]}" "${ports[4]}")
    url=https://127.0.0.1:$api_port
    bootstrap_key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    queue_token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    queue_secret=whsec_$(openssl rand -base64 32)

    start_database
    start_proxy
    start_queue
    await nginx "https://127.0.0.1:$queue_tls_port/stats"
    export HOLDFAST_QUEUE_URL="rest+https://127.0.0.1:$queue_tls_port/v1?queue=expiry&mode=push"
    export HOLDFAST_QUEUE_TOKEN=$queue_token HOLDFAST_QUEUE_SECRET=$queue_secret
    export HOLDFAST_QUEUE_CA=$certificates/ca.pem HOLDFAST_PUBLIC_URL=$url
    export HOLDFAST_ROLES=api,worker HOLDFAST_BOOTSTRAP_KEY=$bootstrap_key
    start_instance 1
    start_instance 2
}

# ---------------------------------------------------------------- the smoke

# Calls the API through the proxy: `call PATH CURL-ARGUMENTS...`.
call() {
    local path=$1
    shift
    curl --silent --show-error --max-time 15 --cacert "$certificates/ca.pem" \
        --header "Authorization: Bearer $bootstrap_key" --header "Content-Type: application/json" \
        "$@" "$url/v1/$path"
}

# The first text or number that a member of this name has in the JSON on stdin.
member() {
    grep --only-matching "\"$1\":[^,}]*" | head -n 1 | cut -d: -f2- | tr -d '"'
}

# A hold that nobody pays comes back because the queue said so, over TLS.
check_push() {
    local id events via
    call stock/COFFEE --fail --request PUT --data '{"on_hand": 2}' --output /dev/null
    id=$(call reservations --fail \
        --data '{"lines": [{"sku": "COFFEE", "quantity": 2}], "hold_seconds": 1}' | member id)
    for _ in {1..200}; do
        events=$(call "events?after=0" --fail)
        [[ $events != *'"kind":"expired"'* ]] || break
        sleep 0.05
    done
    [[ $events == *'"kind":"expired"'* ]] || fail "$id did not expire"
    via=$(member via <<<"$events")
    [[ $via == push ]] || fail "$id expired by the $via, not by a push"
    grep --quiet ' https "POST /v1/deliveries/rest HTTP/1.1" 200 ' "$directory/access.log" ||
        fail "the push did not come through the proxy"
}

# Reserves a unit again and again, each under a key of its own, until there is a file `enough`, and
# at least 60 times. What was not answered is asked again. Prints key, status, id and the number of
# times that it was asked for each key.
shopper() {
    local number=0 key times answer status
    until [[ -e $directory/enough ]] && ((number >= 60)); do
        key=$1-$((++number))
        for times in {1..150}; do
            # A connection that failed has the status 000.
            answer=$(call reservations --header "Idempotency-Key: $key" --write-out '\n%{http_code}' \
                --data '{"lines": [{"sku": "TEA", "quantity": 1}], "hold_seconds": 900}') || true
            status=${answer##*$'\n'}
            [[ $status =~ ^(000|502|503)$ ]] || break
            sleep 0.1
        done
        echo "$key $status $(member id <<<"$answer" || true) $times"
    done
}

# Waits until the shoppers have had this many answers.
await_answers() {
    for _ in {1..600}; do
        (($(cat "$directory"/*.answers 2>/dev/null | wc -l) < $1)) || return 0
        sleep 0.05
    done
    fail "the shoppers get no answers"
}

# Both instances are started anew, one after the other, while shoppers shop.
check_rolling_restart() {
    local name number shoppers=() held other
    call stock/TEA --fail --request PUT --data '{"on_hand": 1000000}' --output /dev/null
    for name in ann bob cleo dan; do
        shopper "$name" >"$directory/$name.answers" 2>>"$directory/shoppers.log" &
        pids[$name]=$!
        shoppers+=($!)
    done
    for number in 1 2; do
        await_answers $((number * 50))
        restart_instance "$number"
    done
    touch "$directory/enough"
    wait "${shoppers[@]}"
    unset "pids[ann]" "pids[bob]" "pids[cleo]" "pids[dan]"
    cat "$directory"/*.answers >"$directory/answers"

    asked=$(wc -l <"$directory/answers")
    other=$(grep --invert-match --extended-regexp '^[a-z]+-[0-9]+ 201 rsv_\w+ ' "$directory/answers" || true)
    [[ -z $other ]] || fail "not every key got its reservation: $(head -n 3 <<<"$other")"
    [[ $(cut -d' ' -f3 "$directory/answers" | sort --unique | wc -l) == "$asked" ]] ||
        fail "two keys got one reservation"
    for number in 1 2; do
        grep --quiet "/v1/reservations HTTP/1.1\" 201 127.0.0.1:${instance_ports[$number]} " \
            "$directory/access.log" || fail "holdfast-$number was given nothing to do"
    done
    held=$(call stock/TEA --fail | member held)
    [[ $held == "$asked" ]] || fail "$asked keys were answered, and $held units are held"
    again=$(awk '{ times += $4 - 1 } END { print times + 0 }' "$directory/answers")
}

check_books() {
    "$program" audit >"$directory/audit.log" 2>&1 ||
        fail "the books are not in order: $(head -n 3 "$directory/audit.log")"
}

start_stack
if [[ $mode == smoke ]]; then
    check_push
    check_rolling_restart
    check_books
    echo "stack: a push over TLS released a hold; $asked reservations went through a restart of both instances, $again asked again, none lost"
    exit
fi

cat <<END
Holdfast runs, twice, behind $url; Ctrl-C ends it.

    key=$bootstrap_key
    curl --cacert $certificates/ca.pem -H "Authorization: Bearer \$key" $url/v1/events

Its queue says what it did at http://127.0.0.1:$queue_port/stats, the parts write logs to $directory.
END
wait -n "${pids[@]}" || true
for name in "${!pids[@]}"; do
    kill -0 "${pids[$name]}" 2>/dev/null ||
        fail "$name has ended: $(tail -n 1 "$directory/$name.log")"
done
