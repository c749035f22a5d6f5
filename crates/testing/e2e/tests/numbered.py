"""Numbered datagrams of some flows, as many at a time as the network takes.

`receive ADDRESS PORT FILE` takes them until FILE is there, prints a line for each thousand, and at last in JSON: how many were
`received`, how many of them came `late`, behind a higher number of their flow, and how many `twice`. `send ADDRESS PORT FLOWS
LENGTH FILE` sends them until FILE is there.
"""

import json
import os
import socket
import sys
import time

HELLO = b"hello"
BURST = 8
PAUSE = 0.002
ROOM = 8 << 20
SO_RCVBUFFORCE = 33


def receive(address, port, file):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM)
    server.settimeout(0.2)
    server.bind((address, port))
    print("listening", flush=True)
    seen, last, late, twice = {}, {}, 0, 0
    received = 0
    while not os.path.exists(file):
        try:
            datagram, flow = server.recvfrom(65536)
        except TimeoutError:
            continue
        if datagram == HELLO:
            server.sendto(HELLO, flow)
            continue
        number = int.from_bytes(datagram[:8], "little")
        numbers = seen.setdefault(flow, set())
        twice += number in numbers
        late += number < last.get(flow, 0)
        numbers.add(number)
        last[flow] = max(number, last.get(flow, 0))
        received += 1
        if received % 1000 == 0:
            print("received", received, flush=True)
    print(json.dumps({"received": received, "late": late, "twice": twice}), flush=True)


def send(address, port, flows, length, file):
    clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(flows)]
    # Datagrams that wait until the kernel knows the neighbour may be overtaken by later ones.
    clients[0].settimeout(0.2)
    while True:
        clients[0].sendto(HELLO, (address, port))
        try:
            clients[0].recv(64)
            break
        except TimeoutError:
            pass
    rest = bytes(length - 8)
    number = 0
    while not os.path.exists(file):
        for _ in range(BURST):
            for client in clients:
                client.sendto(number.to_bytes(8, "little") + rest, (address, port))
            number += 1
        time.sleep(PAUSE)


if sys.argv[1] == "receive":
    receive(sys.argv[2], int(sys.argv[3]), sys.argv[4])
else:
    send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
