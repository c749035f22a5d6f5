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


def receive(connection, length):
    """So many bytes, fewer at the end; a call that a move interrupts returns the bytes so far."""
    received = b""
    while len(received) < length and (more := connection.recv(length - len(received))):
        received += more
    return received


def serve(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    print("listening", flush=True)
    connection = listener.accept()[0]
    number = 0
    while received := receive(connection, BLOCK):
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
    received = int.from_bytes(receive(connection, 8), "little")
    if received != number:
        sys.exit(f"{number} blocks were sent, {received} came")


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    send(sys.argv[2], int(sys.argv[3]), sys.argv[4])
