"""Takes one TCP connection at port 7701, and prints the MD5 sum of all that it carries."""

import hashlib
import socket

connection = socket.create_server(("0.0.0.0", 7701)).accept()[0]
print("bulk", hashlib.md5(connection.makefile("rb").read()).hexdigest(), flush=True)
