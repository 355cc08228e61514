#!/bin/sh
# Starts a service with a gateway in front of it, sends some requests, and stops both.
set -eu
cd "$(dirname "$0")"
dir=$(mktemp -d)
cleanup() { kill "$service" "$gateway" 2>/dev/null || true; wait; rm -r "$dir"; }
# Waits for the ready line of a program and prints the value of NAME=… in it.
ready() { until grep -qs ready "$dir/$1"; do sleep 0.05; done; sed -n "s/.* $2=\([^ ]*\).*/\1/p" "$dir/$1"; }

tidegate serve --http 127.0.0.1:0 --resp off --store memory: 2>"$dir/service" & service=$!
gateway=$service; trap cleanup EXIT
BACKEND_PORT=$(ready service http | sed 's/.*://') LISTEN=127.0.0.1:0 MANAGEMENT=127.0.0.1:0 \
    tidegate gateway --config gateway.yaml >"$dir/access" 2>"$dir/gateway" & gateway=$!
gateway_url=http://$(ready gateway http) management_url=http://$(ready gateway management)

echo "--- two requests to api.example.com, where a client may make two in a second, and a third"
curl -s -o /dev/null -o /dev/null -w '%{http_code}\n' -H 'Host: api.example.com' "$gateway_url/healthz" "$gateway_url/healthz"
curl -si -H 'Host: api.example.com' "$gateway_url/healthz" | tr -d '\r'
echo
echo "--- static files have no limit for clients"
for _ in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code}\n' -H 'Host: cdn.example.com' "$gateway_url/static/x"; done | sort | uniq -c
echo "--- what is used and was refused at the route, and who asks most"
curl -s "$management_url/limits" | python3 -c '
import json, sys
limits = json.load(sys.stdin)
route = next(route for route in limits["routes"] if route["id"] == "api.example.com")
print(json.dumps({"maxQpsPerClient": route["maxQpsPerClient"]}))
for each in limits["hottestClients"]["clients"]:
    print(each["client"], each["requests"], "requests,", each["refused"], "refused")'
kill -TERM "$gateway"; wait "$gateway"
echo "--- what the access log says of the first that was refused"
grep '" 429 ' "$dir/access" | head -n 1 | sed 's/.*" 429/429/; s/took=[0-9.]*/took=…/'
