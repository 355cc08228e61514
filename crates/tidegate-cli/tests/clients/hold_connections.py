"""Holds connections to a gateway: hold_connections.py PORT COUNT FROM.

Each connection has received one response. Exits when its standard input closes.
"""

import resource
import socket
import sys

# The number of connections opened at the same time.
BATCH = 50
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
# In seconds.
TEST_TIMEOUT = 60

port, count, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
_, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
held = []
while len(held) < count:
    batch = []
    for _ in range(min(BATCH, count - len(held))):
        batch.append(socket.create_connection(("127.0.0.1", port), TEST_TIMEOUT, (source, 0)))
        batch[-1].sendall(REQUEST)
    for each in batch:
        response = b""
        while not response.endswith(b"\r\n\r\nok"):
            chunk = each.recv(4096)
            assert chunk, f"connection {len(held)} ended: {response}"
            response += chunk
        assert response.startswith(b"HTTP/1.1 200 "), response
        held.append(each)
print("ready", flush=True)
sys.stdin.read()
for each in held:
    each.close()
