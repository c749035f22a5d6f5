"""Takes one TCP connection at port 7700 that carries the numbers from 1, one a line. Prints each fiftieth.

Ends with 1 if a number is not the next one, or the connection ends.
"""

import socket
import sys

PORT = 7700

connection = socket.create_server(("0.0.0.0", PORT)).accept()[0]
expected = 1
for line in connection.makefile():
    if line != f"{expected}\n":
        sys.exit(f"{line!r} came instead of {expected}")
    if expected % 50 == 0:
        print("received", expected, flush=True)
    expected += 1
sys.exit(f"the connection has ended after {expected - 1}")
