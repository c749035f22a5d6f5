"""A TCP connection over which both ends send numbers without end, and check those that come.

`serve ADDRESS PORT SECONDS` writes `listening`, and accepts one connection. `connect ADDRESS PORT SECONDS` makes one. Both write
`working` when they have it, end their half of it after so long, and write how many numbers have come. They end with 1 if one was
lost, doubled or changed.
"""

import socket
import struct
import sys
import threading
import time

PART = 1024


def send(connection, until):
    number = 0
    while time.monotonic() < until:
        connection.sendall(struct.pack(f"<{PART}Q", *range(number, number + PART)))
        number += PART
        time.sleep(0.01)
    connection.shutdown(socket.SHUT_WR)


def receive(stream):
    number = 0
    while part := stream.read(8 * PART):
        if part != struct.pack(f"<{PART}Q", *range(number, number + PART)):
            raise ValueError(f"other numbers than those from {number} on came")
        number += PART
    return number


def exchange(connection, seconds):
    print("working", flush=True)
    sender = threading.Thread(target=send, args=(connection, time.monotonic() + seconds))
    sender.start()
    print(receive(connection.makefile("rb")), flush=True)
    sender.join()


role, address, port = sys.argv[1:4]
if role == "serve":
    with socket.create_server((address, int(port))) as server:
        print("listening", flush=True)
        exchange(server.accept()[0], float(sys.argv[4]))
else:
    exchange(socket.create_connection((address, int(port))), float(sys.argv[4]))
