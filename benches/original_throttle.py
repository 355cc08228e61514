"""A direct implementation of the two-queue throttle, as a baseline for `tidegate pipe`.

One queue of timestamps for all users and one per user. Every message cleans all queues, checks the global limit, then the
limit of the user, and is recorded if it passes. Reads and writes NDJSON. The time comes from the message.
"""

import json
import sys
from collections import deque


def main():
    global_limit, user_limit, window = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    all_times, users = deque(), {}
    write = sys.stdout.write
    for line in sys.stdin:
        message = json.loads(line)
        now, user = message["ts"], message.get("user_id", "unknown_user")
        cutoff = now - window
        while all_times and all_times[0] < cutoff:
            all_times.popleft()
        for name in list(users):
            times = users[name]
            while times and times[0] < cutoff:
                times.popleft()
            if not times:
                del users[name]
        if len(all_times) >= global_limit or len(users.get(user, ())) >= user_limit:
            continue
        all_times.append(now)
        users.setdefault(user, deque()).append(now)
        write(line)


main()
