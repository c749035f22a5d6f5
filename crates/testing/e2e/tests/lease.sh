#!/bin/sh
# udhcpc calls this with its lease: takes the address, and nothing else.
if [ "$1" = bound ]; then
    # shellcheck disable=SC2154 # udhcpc sets them.
    ip address replace "$ip/$mask" dev "$interface"
    # shellcheck disable=SC2154
    echo "leased $ip"
fi
