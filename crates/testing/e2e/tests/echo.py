"""Datagrams that are answered, while the one who answers moves.

`serve NAME PORT` answers each datagram with NAME. `probe ADDRESS PORT FILE` sends one each 0.5 ms until FILE is there, prints
`answered by NAME` when another one takes over, and each tenth of a second in which there was an answer, and at last in JSON: how
many were `sent` and `answered`, how many answers came `twice`, the `silence` that was the longest in milliseconds, the longest
one up to each time that another one took over, since the time before (`hand_overs`), and the longest one in each twentieth of a
second before the first time (`still`). Another one takes over with an answer to what was asked since the last one has: what was
asked before may be under way, or kept, for long. `ask ADDRESS PORT` asks once, and prints who answers.
"""

import json
import os
import socket
import sys
import time

PAUSE = 0.0005
LINE = 0.1
WINDOW = 0.05
ANSWER = 20


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


def ask(address, port):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(ANSWER)
    client.sendto(bytes(8), (address, port))
    print(client.recv(64)[8:].decode())


def probe(address, port, file):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(PAUSE)
    answers, twice, sent = set(), 0, 0
    # Since another one took over.
    silence, still, hand_overs = 0.0, [], []
    last, name, since, has_answered = None, None, 0, False
    due = line = window = time.monotonic()
    while not os.path.exists(file):
        now = time.monotonic()
        if now >= due:
            try:
                client.sendto(sent.to_bytes(8, "little"), (address, port))
            except OSError:
                pass
            sent, due = sent + 1, now + PAUSE
        if now >= line:
            if has_answered:
                print("answered by", name, flush=True)
            has_answered, line = False, now + LINE
        try:
            answer = client.recv(64)
        except TimeoutError:
            continue
        number, who = int.from_bytes(answer[:8], "little"), answer[8:].decode()
        twice += number in answers
        answers.add(number)
        now = time.monotonic()
        silence, last = max(silence, now - (last or now)), now
        if not hand_overs and now >= window:
            still.append(silence * 1e3)
            silence, window = 0.0, now + WINDOW
        has_answered = has_answered or who == name
        if who != name and number >= since:
            print("answered by", who, flush=True)
            if name is not None:
                hand_overs.append(silence * 1e3)
                silence = 0.0
            name, since = who, sent
    summary = {"sent": sent, "answered": len(answers), "twice": twice, "hand_overs": hand_overs, "still": still}
    summary["silence"] = max([silence * 1e3, *still, *hand_overs])
    print(json.dumps(summary), flush=True)


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "ask":
    ask(sys.argv[2], int(sys.argv[3]))
else:
    probe(sys.argv[2], int(sys.argv[3]), sys.argv[4])
