#!/bin/sh
# Starts a service and a gateway in front of it, asks for a few things, and ends both.
set -eu
cd "$(dirname "$0")"
place=$(mktemp -d)
ended() { kill "$service" "$gateway" 2>/dev/null || true; wait; rm -r "$place"; }
# What NAME=… is in the line that a program says when it is ready.
ready() { until grep -qs ready "$place/$1"; do sleep 0.05; done; sed -n "s/.* $2=\([^ ]*\).*/\1/p" "$place/$1"; }

tidegate serve --http 127.0.0.1:0 --resp off --store memory: 2>"$place/service" & service=$!
gateway=$service; trap ended EXIT
BACKEND_PORT=$(ready service http | sed 's/.*://') LISTEN=127.0.0.1:0 MANAGEMENT=127.0.0.1:0 \
    tidegate gateway --config gateway.yaml >"$place/access" 2>"$place/gateway" & gateway=$!
here=http://$(ready gateway http) management=http://$(ready gateway management)

echo "--- two requests to api.example.com, where a client may make two in a second, and a third"
curl -s -o /dev/null -o /dev/null -w '%{http_code}\n' -H 'Host: api.example.com' "$here/healthz" "$here/healthz"
curl -si -H 'Host: api.example.com' "$here/healthz" | tr -d '\r'
echo
echo "--- static files have no limit for clients"
for _ in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code}\n' -H 'Host: cdn.example.com' "$here/static/x"; done | sort | uniq -c
echo "--- what is used and was refused at the route, and who asks most"
curl -s "$management/limits" | python3 -c '
import json, sys
limits = json.load(sys.stdin)
route = next(route for route in limits["routes"] if route["id"] == "api.example.com")
print(json.dumps({"maxQpsPerClient": route["maxQpsPerClient"]}))
for each in limits["hottestClients"]["clients"]:
    print(each["client"], each["requests"], "requests,", each["refused"], "refused")'
kill -TERM "$gateway"; wait "$gateway"
echo "--- what the access log says of the first that was refused"
grep '" 429 ' "$place/access" | head -n 1 | sed 's/.*" 429/429/; s/took=[0-9.]*/took=…/'
