"""Asks /health of a server again and again, and says how long the slowest answer took.

    python tools/attacks/health.py PORT

The first line is written behind the first answer; the last line, the seconds of the slowest answer, once the standard input ends.
This is a program of its own: a thread beside one that reads or writes long JSON would measure how long Python's lock is held.
"""

import http.client
import select
import sys
import time

PAUSE_S = 0.01


def main(port):
    connection, slowest = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0.0
    while True:
        began = time.monotonic()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        took = time.monotonic() - began
        if answer.status != 200:
            print(f"/health: {answer.status}", flush=True)
            return 1
        if not slowest:
            print("began", flush=True)
        slowest = max(slowest, took)
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            print(slowest)
            return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
