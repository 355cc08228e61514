"""Document 001's pipeline as it is described there, as a peer to measure `tidegate pipe` against.

One queue of timestamps for everybody and one per user; every message cleans all of them, checks the global limit, then the
user's, and is recorded if it passes. Reads and writes NDJSON; the time is the message's own.
"""

import json
import sys
from collections import deque


def main():
    global_limit, user_limit, window = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    everybody, users = deque(), {}
    write = sys.stdout.write
    for line in sys.stdin:
        message = json.loads(line)
        now, user = message["ts"], message.get("user_id", "unknown_user")
        cutoff = now - window
        while everybody and everybody[0] < cutoff:
            everybody.popleft()
        for name in list(users):
            times = users[name]
            while times and times[0] < cutoff:
                times.popleft()
            if not times:
                del users[name]
        if len(everybody) >= global_limit or len(users.get(user, ())) >= user_limit:
            continue
        everybody.append(now)
        users.setdefault(user, deque()).append(now)
        write(line)


main()
