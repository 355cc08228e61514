#!/bin/sh
# A temporary PostgreSQL cluster for tests, in a temporary directory, on a free port, run by an unprivileged user.
# It is removed when the process that started it ends.
#
#   cluster.sh [SETTING=VALUE]...
#   cluster.sh --where
#
# `--where` prints the directory of the PostgreSQL programs, or `missing WHAT`. With `ssl=on` the server has a self-signed
# certificate for the name `localhost`; `SHOW ssl_cert_file` gives its path.
#
# Prints one line when the server is ready, `ready postgres://tidegate@127.0.0.1:PORT/postgres`, or `missing WHAT` or
# `failed: WHY`. Then it runs the commands of its input, one per line, and prints `done` after each: `stop`, `start`,
# `restart`, `crash` (like a power failure), `pause`, `resume`. At the end of the input it removes everything. fsync is
# off unless a setting enables it, because the data need not survive.
set -u

emit() { printf '%s\n' "$*"; }

# Finds the programs on the path, or in the directories that distributions use.
find_bin() {
    if [ -n "${TIDEGATE_POSTGRES_BIN:-}" ]; then emit "$TIDEGATE_POSTGRES_BIN"; return; fi
    if command -v initdb >/dev/null && command -v postgres >/dev/null; then dirname "$(command -v initdb)"; return; fi
    for bin in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin 2>/dev/null | sort -rV); do
        if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then emit "$bin"; return; fi
    done
}

bin=$(find_bin)
if [ -z "$bin" ]; then emit 'missing initdb and postgres (Debian: apt-get install postgresql)'; exit 1; fi
if [ "${1:-}" = --where ]; then emit "$bin"; exit 0; fi

# The server refuses to run as root. As root, this script runs itself again as an unprivileged user.
if [ "$(id -u)" = 0 ]; then
    user=nobody
    id postgres >/dev/null 2>&1 && user=postgres
    command -v setpriv >/dev/null || { emit 'missing setpriv (Debian: apt-get install util-linux)'; exit 1; }
    TIDEGATE_POSTGRES_BIN=$bin exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- env HOME=/tmp sh -s -- "$@" 3<&0 <<REST
$(cat "$0")
REST
fi
# The script that ran as root passed the input as descriptor 3.
if [ -e /dev/fd/3 ] && [ "${TIDEGATE_POSTGRES_BIN:-}" ]; then exec 0<&3 3<&-; fi

directory=$(mktemp -d "${TMPDIR:-/tmp}/tidegate-postgres-XXXXXX") || { emit 'failed: no temporary directory'; exit 1; }
cd "$directory" || exit 1
server=
finish() {
    # A paused process does not receive SIGQUIT before it continues.
    [ -n "$server" ] && kill -CONT "$server" $(pgrep -P "$server") 2>/dev/null
    [ -n "$server" ] && kill -QUIT "$server" 2>/dev/null && wait "$server" 2>/dev/null
    cd / && rm -rf "$directory"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

if ! "$bin/initdb" -D data -U tidegate -A trust -E UTF8 --locale=C --no-sync --no-instructions >init.log 2>&1; then
    emit "failed: initdb: $(tail -1 init.log)"
    exit 1
fi
# One user needs a password. All others connect without one.
{ emit 'host all password_user 127.0.0.1/32 scram-sha-256'; emit 'host all all 127.0.0.1/32 trust'; } >data/pg_hba.conf
{
    emit "listen_addresses = '127.0.0.1'"
    emit "unix_socket_directories = ''"
    emit 'max_connections = 200'
    emit 'shared_buffers = 64MB'
    emit 'log_min_messages = warning'
    emit "timezone = 'UTC'"
    case " $* " in *' fsync='*) ;; *) emit 'fsync = off'; emit 'full_page_writes = off' ;; esac
    for setting in "$@"; do emit "${setting%%=*} = '${setting#*=}'"; done
} >>data/postgresql.conf

# The certificate is not a CA, so trusting it means trusting this server only.
certify() {
    command -v openssl >/dev/null || { emit 'missing openssl (Debian: apt-get install openssl)'; exit 1; }
    {
        emit '[req]'; emit 'distinguished_name = name'; emit 'x509_extensions = more'; emit 'prompt = no'
        emit '[name]'; emit 'CN = localhost'
        emit '[more]'; emit 'basicConstraints = critical, CA:FALSE'; emit 'subjectAltName = DNS:localhost'
    } >certificate.conf
    (umask 077 && openssl req -x509 -newkey rsa:2048 -nodes -days 30 -config certificate.conf \
        -keyout server.key -out server.crt) >certificate.log 2>&1 || { emit "failed: openssl: $(tail -1 certificate.log)"; exit 1; }
    { emit "ssl_cert_file = '$directory/server.crt'"; emit "ssl_key_file = '$directory/server.key'"; } >>data/postgresql.conf
}
case " $* " in *' ssl=on '*) certify ;; esac

start() {
    "$bin/postgres" -D data -p "$port" >>server.log 2>&1 </dev/null &
    server=$!
    tries=0
    # The last line of this file is the state of the server.
    until grep -q ready data/postmaster.pid 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { wait "$server"; server=; return 1; }
        tries=$((tries + 1))
        [ "$tries" -gt 600 ] && return 1
        sleep 0.05
    done
}
halt() {
    [ -n "$server" ] || return 0
    kill "-$1" "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    server=
}

# Picks a random port, and another one if it is taken.
attempts=0
until
    port=$((20000 + ($(od -An -N2 -tu2 /dev/urandom) % 40000)))
    start
do
    attempts=$((attempts + 1))
    if [ "$attempts" -ge 20 ]; then emit "failed: $(tail -1 server.log)"; exit 1; fi
done
emit "ready postgres://tidegate@127.0.0.1:$port/postgres"

while read -r command; do
    case $command in
        stop) halt INT ;;
        start) start ;;
        restart) halt INT; start ;;
        # Kills all processes at once, like a power failure.
        crash) pkill -9 -P "$server" 2>/dev/null; halt KILL; start ;;
        pause) kill -STOP "$server" $(pgrep -P "$server") ;;
        resume) kill -CONT "$server" $(pgrep -P "$server") ;;
    esac
    emit 'done'
done
