"""Datagrams that are answered, while the one who answers moves.

`serve NAME PORT` answers each datagram with NAME. `probe ADDRESS PORT FILE` sends one each 0.5 ms until FILE is there, prints
`answered by NAME` each tenth of a second in which there was an answer, and at last in JSON: how many were `sent` and `answered`,
how many answers came `twice`, the `silence` that was the longest in milliseconds, and which names have answered, in the order
of the questions (`by`: a name once for all that follow each other).
"""

import json
import os
import socket
import sys
import time

PAUSE = 0.0005
LINE = 0.1


def serve(name, port):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", port))
    print("listening", flush=True)
    while True:
        number, client = server.recvfrom(64)
        try:
            server.sendto(number + name.encode(), client)
        except OSError:
            # The device has moved away in between.
            pass


def names_in_order(answers):
    by = []
    for number in sorted(answers):
        if not by or by[-1] != answers[number]:
            by.append(answers[number])
    return by


def probe(address, port, file):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(PAUSE)
    answers, twice, silence, sent = {}, 0, 0.0, 0
    last = due = line = time.monotonic()
    name = None
    while not os.path.exists(file):
        now = time.monotonic()
        if now >= due:
            try:
                client.sendto(sent.to_bytes(8, "little"), (address, port))
            except OSError:
                pass
            sent, due = sent + 1, now + PAUSE
        if now >= line:
            if name is not None:
                print("answered by", name, flush=True)
            name, line = None, now + LINE
        try:
            answer = client.recv(64)
        except TimeoutError:
            continue
        number, name = int.from_bytes(answer[:8], "little"), answer[8:].decode()
        twice += number in answers
        answers[number] = name
        silence, last = max(silence, time.monotonic() - last), time.monotonic()
    summary = {"sent": sent, "answered": len(answers), "twice": twice, "silence": silence * 1e3}
    print(json.dumps(summary | {"by": names_in_order(answers)}), flush=True)


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    probe(sys.argv[2], int(sys.argv[3]), sys.argv[4])
