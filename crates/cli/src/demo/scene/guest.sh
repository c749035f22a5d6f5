#!/bin/sh
# Runs in the guest of the demo: what the outside measures and checks. The programs are the host's, with its C library.
exec >/dev/console 2>&1
tools=/opt/transhume
ours() {
    program=$1
    shift
    "$tools/ld-linux-x86-64.so.2" --library-path "$tools" "$tools/$program" "$@"
}
until ip -4 address show dev eth0 | grep -q inet; do sleep 0.1; done
ours transhume-guest &
ours probe-answer 7790 &
iperf3 --server >/dev/null &
fio --name=check --filename=/root/check --size=32M --rw=randwrite --bs=4k --direct=1 --rate_iops=100 --time_based --runtime=1d \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --eta=never --output=/run/fio &
fio=$!
until grep -q ':1451 ' /proc/net/tcp6; do sleep 0.1; done
(
    # It ends when the client has ended, and both have compared their counts.
    LD_PRELOAD= "$tools/ld-linux-x86-64.so.2" --library-path "$tools" --preload "$tools/libibverbs.so.1" "$tools/verbs-check" \
        server --listen 0.0.0.0:18600 --json --events --report-interval 3600
    kill -INT "$fio"
) &
wait "$fio"
code=$?
grep -e 'issued rwts' -e 'err=' -e verify: /run/fio
# So it ends when it is interrupted and has found no error before. A wrong block ends it early, with 1.
[ "$code" = 128 ] && grep -q 'err= 0:' /run/fio && code=0
echo "fio has ended with $code"
