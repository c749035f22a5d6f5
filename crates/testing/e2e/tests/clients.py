"""Clients of the services in `services.sh`, each with one connection for all of its time, which check each reply.

`work ADDRESS FOLDER SECONDS [RATE]` sends a stream with iperf3 for so long, and meanwhile lines through a session of ssh and counts
in redis. FOLDER holds `client_key`. It writes `working` when all have begun, and at the end how much each has done, as JSON; it
ends with 1 if a connection broke, or a reply was wrong or lost. `answer` is the other end of the session. `count ADDRESS SECONDS`
only counts in redis.
"""

import concurrent.futures
import json
import re
import socket
import subprocess
import sys
import threading
import time

REDIS_CLIENTS = 4
# Lines that are on their way at once, each with a number.
LINES = 64
# The stream is to share the processors with the moves.
RATE = "100M"


class Redis:
    """A connection to redis, in its own protocol."""

    def __init__(self, address):
        self.stream = socket.create_connection((address, 6379)).makefile("rwb")

    def ask(self, *words):
        """The first line of the reply, or the text behind it if that line is a length."""
        text = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self.stream.write(b"".join(text))
        self.stream.flush()
        line = self.stream.readline()
        if not line.startswith(b"$"):
            return line.rstrip()
        return self.stream.read(int(line[1:]) + 2).rstrip()


def expect(found, wanted):
    if found != wanted:
        raise ValueError(f"{found!r} came in the place of {wanted!r}")


def count(redis, name, enough):
    """Counts in redis until it is enough, beside others: its own counter has the next value each time."""
    counted = 0
    while not enough.is_set():
        counted += 1
        expect(redis.ask(b"INCR", name), b":%d" % counted)
    expect(redis.ask(b"GET", name), b"%d" % counted)
    return counted


def session(address, folder):
    """A session with a terminal, in which `answer` is at the other end."""
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
    command = ["ssh", "-tt", "-F", "none", "-i", f"{folder}/client_key"]
    command += [word for option in options for word in ("-o", option)]
    command += [f"root@{address}", f"stty raw -echo && exec /usr/bin/python3 {folder}/clients.py answer"]
    ssh = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    expect(ssh.stdout.readline(), b"there\n")
    return ssh


def talk(ssh, enough):
    """Sends numbered lines until it is enough. The answer to each is its own number."""
    lines = 0
    while not enough.is_set():
        numbers = range(lines, lines + LINES)
        ssh.stdin.write(b"".join(b"%d\n" % number for number in numbers))
        ssh.stdin.flush()
        for number in numbers:
            expect(ssh.stdout.readline(), b"%d there\n" % number)
        lines += LINES
    ssh.stdin.write(b"end\n")
    ssh.stdin.flush()
    expect(ssh.stdout.read(), b"%d lines\n" % lines)
    expect(ssh.wait(), 0)
    return lines


def answer():
    print("there", flush=True)
    number = 0
    while (line := sys.stdin.readline()) != "end\n":
        expect(line, f"{number}\n")
        print(f"{number} there", flush=True)
        number += 1
    print(f"{number} lines", flush=True)


def clients_received(redis):
    return re.findall(rb"total_connections_received:(\d+)", redis.ask(b"INFO", b"stats"))


def only_count(address, seconds):
    connections = [Redis(address) for _ in range(REDIS_CLIENTS)]
    enough = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(max_workers=REDIS_CLIENTS) as threads:
        counts = [threads.submit(count, each, b"counter%d" % number, enough) for number, each in enumerate(connections)]
        print("working", flush=True)
        time.sleep(float(seconds))
        enough.set()
    counted = sum(each.result() for each in counts)
    expect(clients_received(connections[0]), [b"%d" % REDIS_CLIENTS])
    print(json.dumps({"counted": counted}), flush=True)


def work(address, folder, seconds, rate=RATE):
    names = [b"counter%d" % number for number in range(REDIS_CLIENTS)]
    connections = [Redis(address) for _ in names]
    ssh = session(address, folder)
    stream = ["iperf3", "--client", address, "--time", seconds, "--bitrate", rate, "--json"]
    iperf3 = subprocess.Popen(stream, stdout=subprocess.PIPE, text=True)
    enough = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(max_workers=REDIS_CLIENTS + 1) as threads:
        counts = [threads.submit(count, *each, enough) for each in zip(connections, names)]
        lines = threads.submit(talk, ssh, enough)
        print("working", flush=True)
        said = iperf3.communicate()[0]
        enough.set()
    expect((iperf3.returncode, said if iperf3.returncode else ""), (0, ""))
    done = {"lines": lines.result(), "counted": sum(each.result() for each in counts)}
    expect(clients_received(connections[0]), [b"%d" % REDIS_CLIENTS])
    done["streamed"] = json.loads(said)["end"]["sum_received"]["bytes"]
    print(json.dumps(done), flush=True)


if sys.argv[1] == "answer":
    answer()
elif sys.argv[1] == "count":
    only_count(*sys.argv[2:])
else:
    work(*sys.argv[2:])
