"""Ethernet frames with VLAN tags, between two devices.

`receive DEVICE FILE` prints the tags and the length of each frame that `send` has made, until FILE is there. `send DEVICE MAC LENGTH FILE TAG…`
sends such frames of LENGTH bytes to MAC again and again until FILE is there; a TAG is its ethertype and what follows, as 8100:6007.
"""

import os
import socket
import struct
import sys
import time

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_AUXDATA = 8
TP_STATUS_VLAN_VALID = 1 << 4
TAGS = (0x8100, 0x88A8)
# For experiments.
ETHERTYPE = 0x88B5


def tag_taken_out(auxiliary):
    """The outermost tag, which the kernel hands over beside the frame."""
    for level, kind, data in auxiliary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tag, ethertype = struct.unpack("=IIIHHHH", data[:20])
            if status & TP_STATUS_VLAN_VALID:
                return [(ethertype, tag)]
    return []


def receive(device, until):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    raw.bind((device, ETH_P_ALL))
    raw.settimeout(0.1)
    print("listening", flush=True)
    while not os.path.exists(until):
        try:
            frame, auxiliary, _, _ = raw.recvmsg(1 << 16, 1 << 10)
        except TimeoutError:
            continue
        tags, at = tag_taken_out(auxiliary), 12
        while (ethertype := int.from_bytes(frame[at : at + 2])) in TAGS:
            tags.append((ethertype, int.from_bytes(frame[at + 2 : at + 4])))
            at += 4
        if ethertype == ETHERTYPE:
            words = [f"{ethertype:04x}:{tag:04x}" for ethertype, tag in tags]
            print("received", *words, len(frame) - at - 2, flush=True)


def send(device, mac, length, until, tags):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((device, 0))
    source = raw.getsockname()[4]
    front = bytes.fromhex(mac.replace(":", "")) + source + bytes.fromhex("".join(tags).replace(":", ""))
    while not os.path.exists(until):
        raw.send(front + ETHERTYPE.to_bytes(2) + bytes(length))
        time.sleep(0.05)


if sys.argv[1] == "receive":
    receive(sys.argv[2], sys.argv[3])
else:
    send(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6:])
