"""What a datagram socket of librdmacm refuses, and that it goes on after that.

`serve` sends back one datagram, and ends. `ask ADDRESS` is refused what cannot be, then exchanges a datagram.
"""

import ctypes
import errno
import os
import socket
import struct
import sys

PORT = 7174
LONGEST = 4076

rdma = ctypes.CDLL("librdmacm.so.1", use_errno=True)


def name(address, port=PORT):
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(address))


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def refused(expected, result):
    code = ctypes.get_errno()
    assert result == -1 and code == expected, (result, errno.errorcode.get(code), errno.errorcode[expected])


def serve():
    peer, length, data = ctypes.create_string_buffer(16), ctypes.c_uint32(16), ctypes.create_string_buffer(8192)
    fd = check(rdma.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0))
    check(rdma.rbind(fd, name("0.0.0.0"), 16))
    print("serves", flush=True)
    got = check(rdma.rrecvfrom(fd, data, len(data), 0, peer, ctypes.byref(length)))
    check(rdma.rsendto(fd, data, got, 0, peer, length))
    check(rdma.rclose(fd))


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Header(ctypes.Structure):
    """`struct msghdr`"""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("parts", ctypes.POINTER(Part)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


def ask(address):
    fd = check(rdma.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0))
    data = bytes(number % 251 for number in range(LONGEST + 1))
    to = name(address)
    parts = (Part * 2)(Part(data, 8), Part(data, 8))
    refused(errno.EDESTADDRREQ, rdma.rsend(fd, data, 8, 0))
    refused(errno.EMSGSIZE, rdma.rsendto(fd, data, LONGEST + 1, 0, to, 16))
    check(rdma.rconnect(fd, to, 16))
    refused(errno.EMSGSIZE, rdma.rsend(fd, data, LONGEST + 1, 0))
    refused(errno.EOPNOTSUPP, rdma.rsendmsg(fd, ctypes.byref(Header(None, 0, parts, 2)), 0))
    refused(errno.EOPNOTSUPP, rdma.rwritev(fd, parts, 2))
    refused(errno.EOPNOTSUPP, rdma.rlisten(fd, 1))
    back = ctypes.create_string_buffer(8192)
    assert check(rdma.rsend(fd, data, LONGEST, 0)) == LONGEST
    assert check(rdma.rrecv(fd, back, len(back), 0)) == LONGEST
    assert back.raw[:LONGEST] == data[:LONGEST]
    check(rdma.rclose(fd))


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[2])
