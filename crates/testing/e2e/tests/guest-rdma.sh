#!/bin/busybox sh
# The program of a small guest: the server of the checking workload, with the library and the agent of this build.
# Kernel arguments: ip=ADDRESS:::MASK::…
/bin/busybox mkdir -p /proc /dev /sys /tmp
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/rdma
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
mount -t sysfs sysfs /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
for word in $(cat /proc/cmdline); do
    case $word in
    ip=*)
        address=${word#ip=}
        mask=${address#*:*:*:}
        ifconfig lo up
        ifconfig eth0 "${address%%:*}" netmask "${mask%%:*}" up
        ;;
    esac
done
ln -s libibverbs.so /rdma/libibverbs.so.1
/rdma/transhume-guest &
LD_PRELOAD=/rdma/libibverbs.so.1 /rdma/verbs-check server --json --stall-limit 60 --report-interval 0.2
code=$?
[ "$code" = 0 ] && poweroff -f
echo "BAD: the workload has ended with $code"
sleep 1000
