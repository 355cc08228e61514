#!/bin/sh
# A throw-away PostgreSQL: made in a temporary directory, run as an unprivileged user on a free port, and gone with whoever started it.
#
#   cluster.sh [SETTING=VALUE]...
#   cluster.sh --where
#
# The second only says where the programs are, or `missing WHAT`. With `ssl=on` it shows a certificate of its own for the name `localhost`, which
# nobody has signed but itself; `SHOW ssl_cert_file` tells where that is.
#
# Says one line when it is ready, `ready postgres://tidegate@127.0.0.1:PORT/postgres`, or `missing WHAT` or `failed WHY`. Then it does what its
# input says, line by line, and answers each with `done`: `stop`, `start`, `restart`, `crash` (as a power failure), `pause`, `resume`. When its
# input ends, everything is removed. Without a setting for fsync there is none: nothing here is to survive.
set -u

say() { printf '%s\n' "$*"; }

# Where the programs are: on the path, or where distributions keep their versions.
find_bin() {
    if [ -n "${TIDEGATE_POSTGRES_BIN:-}" ]; then say "$TIDEGATE_POSTGRES_BIN"; return; fi
    if command -v initdb >/dev/null && command -v postgres >/dev/null; then dirname "$(command -v initdb)"; return; fi
    for bin in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin 2>/dev/null | sort -rV); do
        if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then say "$bin"; return; fi
    done
}

bin=$(find_bin)
if [ -z "$bin" ]; then say 'missing initdb and postgres (Debian: apt-get install postgresql)'; exit 1; fi
if [ "${1:-}" = --where ]; then say "$bin"; exit 0; fi

# The server refuses to run as root, so somebody else runs all of this.
if [ "$(id -u)" = 0 ]; then
    user=nobody
    id postgres >/dev/null 2>&1 && user=postgres
    command -v setpriv >/dev/null || { say 'missing setpriv (Debian: apt-get install util-linux)'; exit 1; }
    TIDEGATE_POSTGRES_BIN=$bin exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- env HOME=/tmp sh -s -- "$@" 3<&0 <<REST
$(cat "$0")
REST
fi
# Whoever ran this as root left the input at 3.
if [ -e /dev/fd/3 ] && [ "${TIDEGATE_POSTGRES_BIN:-}" ]; then exec 0<&3 3<&-; fi

place=$(mktemp -d "${TMPDIR:-/tmp}/tidegate-postgres-XXXXXX") || { say 'failed: no temporary directory'; exit 1; }
cd "$place" || exit 1
server=
finish() {
    # Who is paused would not hear of its end.
    [ -n "$server" ] && kill -CONT "$server" $(pgrep -P "$server") 2>/dev/null
    [ -n "$server" ] && kill -QUIT "$server" 2>/dev/null && wait "$server" 2>/dev/null
    cd / && rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

if ! "$bin/initdb" -D data -U tidegate -A trust -E UTF8 --locale=C --no-sync --no-instructions >init.log 2>&1; then
    say "failed: initdb: $(tail -1 init.log)"
    exit 1
fi
# One user has to show a password, everybody else is let in.
{ say 'host all walled 127.0.0.1/32 scram-sha-256'; say 'host all all 127.0.0.1/32 trust'; } >data/pg_hba.conf
{
    say "listen_addresses = '127.0.0.1'"
    say "unix_socket_directories = ''"
    say 'max_connections = 200'
    say 'shared_buffers = 64MB'
    say 'log_min_messages = warning'
    say "timezone = 'UTC'"
    case " $* " in *' fsync='*) ;; *) say 'fsync = off'; say 'full_page_writes = off' ;; esac
    for setting in "$@"; do say "${setting%%=*} = '${setting#*=}'"; done
} >>data/postgresql.conf

# A certificate that is no authority: whoever trusts it trusts this server, and nobody that it could sign for.
certify() {
    command -v openssl >/dev/null || { say 'missing openssl (Debian: apt-get install openssl)'; exit 1; }
    {
        say '[req]'; say 'distinguished_name = name'; say 'x509_extensions = more'; say 'prompt = no'
        say '[name]'; say 'CN = localhost'
        say '[more]'; say 'basicConstraints = critical, CA:FALSE'; say 'subjectAltName = DNS:localhost'
    } >certificate.conf
    (umask 077 && openssl req -x509 -newkey rsa:2048 -nodes -days 30 -config certificate.conf \
        -keyout server.key -out server.crt) >certificate.log 2>&1 || { say "failed: openssl: $(tail -1 certificate.log)"; exit 1; }
    { say "ssl_cert_file = '$place/server.crt'"; say "ssl_key_file = '$place/server.key'"; } >>data/postgresql.conf
}
case " $* " in *' ssl=on '*) certify ;; esac

start() {
    "$bin/postgres" -D data -p "$port" >>server.log 2>&1 </dev/null &
    server=$!
    tries=0
    # The last line of its file says how far it is.
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

# A port that nobody has; if somebody was faster, another.
attempts=0
until
    port=$((20000 + ($(od -An -N2 -tu2 /dev/urandom) % 40000)))
    start
do
    attempts=$((attempts + 1))
    if [ "$attempts" -ge 20 ]; then say "failed: $(tail -1 server.log)"; exit 1; fi
done
say "ready postgres://tidegate@127.0.0.1:$port/postgres"

while read -r order; do
    case $order in
        stop) halt INT ;;
        start) start ;;
        restart) halt INT; start ;;
        # All of them at once, as when the power fails.
        crash) pkill -9 -P "$server" 2>/dev/null; halt KILL; start ;;
        pause) kill -STOP "$server" $(pgrep -P "$server") ;;
        resume) kill -CONT "$server" $(pgrep -P "$server") ;;
    esac
    say 'done'
done
