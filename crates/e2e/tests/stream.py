"""One TCP connection that carries a known pattern while the network below it changes.

`serve ADDRESS PORT` accepts once, checks every byte, and prints a line for each MiB. `send ADDRESS PORT FILE` sends until
FILE is there; both end with 1 unless all that was sent has come.
"""

import os
import socket
import sys

BLOCK = 1 << 16
LINE = 16


def block(number):
    return number.to_bytes(8, "little") * (BLOCK // 8)


def serve(address, port):
    listener = socket.create_server((address, port))
    print("listening", flush=True)
    connection = listener.accept()[0]
    number = 0
    while received := connection.recv(BLOCK, socket.MSG_WAITALL):
        if received != block(number):
            sys.exit(f"block {number} is wrong, or cut off after {len(received)} bytes")
        number += 1
        if number % LINE == 0:
            print("received", number, flush=True)
    connection.sendall(number.to_bytes(8, "little"))


def send(address, port, file):
    connection = socket.create_connection((address, port), timeout=60)
    number = 0
    while not os.path.exists(file):
        connection.sendall(block(number))
        number += 1
    connection.shutdown(socket.SHUT_WR)
    received = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
    if received != number:
        sys.exit(f"{number} blocks were sent, {received} came")


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    send(sys.argv[2], int(sys.argv[3]), sys.argv[4])
