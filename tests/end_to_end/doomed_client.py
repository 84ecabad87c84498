"""`python -m tests.end_to_end.doomed_client URL`: a client that is going to be killed.

Sends each line of standard input as a frame. An empty line ends the frames: it says `sent`, and from then on the type
of each event it hears, a line each. The word `deaf` instead ends them too, and it never reads its socket again.
"""

import json
import signal
import sys

from websockets.sync.client import connect


def main() -> None:
    with connect(sys.argv[1], compression=None, proxy=None, max_size=None) as connection:
        for line in sys.stdin:
            if line.strip() in ("", "deaf"):
                break
            connection.send(line)
        print("sent", flush=True)
        if line.strip() == "deaf":
            signal.pause()
        while True:
            print(json.loads(connection.recv())["type"], flush=True)


if __name__ == "__main__":
    main()
