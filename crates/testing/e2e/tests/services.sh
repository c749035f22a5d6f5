#!/bin/sh
# Three of Debian's services, as they come, in one container: iperf3 for one client, sshd and redis-server. Writes `listening`
# when all three do.
#
#   services.sh FOLDER     FOLDER: where `host_key` lies, and the `client_key.pub` that sshd lets in
set -eu
mkdir -p /run/sshd
iperf3 --server --one-off --bind 0.0.0.0 >/dev/null &
# -D: not in the background, -e: its log goes to standard error. The test sets the permissions of the folder.
/usr/sbin/sshd -D -e -f /dev/null -h "$1/host_key" -o AddressFamily=inet -o UsePAM=yes -o StrictModes=no \
    -o AuthorizedKeysFile="$1/client_key.pub" &
redis-server --bind 0.0.0.0 --protected-mode no --dir /tmp >/dev/null &
until [ "$(grep -c ' 0A ' /proc/net/tcp)" = 3 ]; do sleep 0.02; done
echo listening
wait
