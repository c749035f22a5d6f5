#!/bin/sh
# A LAN with a machine on it that is its DHCP server, behind the bridge `home` of this network namespace. Writes the PID of
# that machine and its own one, by which others find the bridge, and goes on until it is killed.
#
#   home_lan.sh SCRATCH     SCRATCH: a folder for the server's leases
set -eu
ip link add home type bridge
ip link set home up
unshare --net --kill-child --fork sh -eu -c '
    ip link add eth0 type veth peer name home0 netns "$1"
    ip address add 192.168.7.1/24 dev eth0
    ip link set lo up
    ip link set eth0 up
    exec dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=eth0 --user=root \
        --dhcp-range=192.168.7.100,192.168.7.150,1h --dhcp-leasefile="$2/leases" --pid-file="$2/pid" --log-facility=-
' sh $$ "$1" &
until [ -s "$1/pid" ]; do sleep 0.02; done
ip link set home0 master home up
echo "machine $(cat "$1/pid")"
echo "bridge $$"
wait
