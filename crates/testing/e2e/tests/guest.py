"""Somebody without a certificate, or with one of his choice, at a port of the cluster's.

`say ADDRESS PORT HEX [CERTIFICATE KEY]` connects by TLS without a certificate, or with that in these files, sends the bytes, and
prints what comes back, or `cut off`.
`crowd ADDRESS PORT` holds as many connections as it gets, says nothing on them, and waits to be killed.
"""

import socket
import ssl
import sys
import time

LIMIT = 20


def connect(address, port, own):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own:
        context.load_cert_chain(*own)
    return context.wrap_socket(socket.create_connection((address, port), LIMIT))


def say(address, port, said, *own):
    try:
        stream = connect(address, port, own)
        stream.sendall(bytes.fromhex(said))
        answer = stream.recv(65536)
    except TimeoutError:
        sys.exit("it is still connected")
    except OSError:
        answer = b""
    print(answer.hex() or "cut off", flush=True)


def crowd(address, port):
    held = [socket.create_connection((address, port), LIMIT) for _ in range(200)]
    print("held", len(held), flush=True)
    time.sleep(3600)


if sys.argv[1] == "say":
    say(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
else:
    crowd(sys.argv[2], int(sys.argv[3]))
