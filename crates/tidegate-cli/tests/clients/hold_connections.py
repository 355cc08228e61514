"""Holds connections to a gateway, each of which has been answered: hold_connections.py PORT COUNT FROM. Leaves when nobody speaks to it any more."""

import resource
import socket
import sys

# So many ask at the same time.
TOGETHER = 50
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
# In seconds.
FAR_TOO_LONG = 60

port, count, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
while len(held) < count:
    some = []
    for _ in range(min(TOGETHER, count - len(held))):
        some.append(socket.create_connection(("127.0.0.1", port), FAR_TOO_LONG, (source, 0)))
        some[-1].sendall(REQUEST)
    for each in some:
        answer = b""
        while not answer.endswith(b"\r\n\r\nok"):
            piece = each.recv(4096)
            assert piece, f"connection {len(held)} ended: {answer}"
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        held.append(each)
print("ready", flush=True)
sys.stdin.read()
for each in held:
    each.close()
