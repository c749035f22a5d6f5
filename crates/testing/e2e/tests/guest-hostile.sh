#!/bin/busybox sh
# The program of a hostile guest. It floods the port of its agent, the DHCP server, the network and the console, and resets the machine.
# Kernel argument: reset=SECONDS.
/bin/busybox mkdir -p /proc /dev /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
while read -r module; do insmod "/modules/$module"; done </modules/order
reset=
for word in $(cat /proc/cmdline); do
    case $word in
    reset=*) reset=${word#reset=} ;;
    esac
done
ifconfig eth0 up
# The magic number of a frame, and a length of 60,000 bytes, many times.
i=0
while [ $i -lt 4096 ]; do
    printf '\365Tr\372\140\352\0\0\0\0\0\0\0\0\0\0'
    i=$((i + 1))
done >/tmp/headers
for port in /dev/vport*; do
    (while :; do cat /tmp/headers; dd if=/dev/urandom bs=64k count=1; done >"$port" 2>/dev/null) &
done
(while :; do udhcpc -i eth0 -n -q -f -t 1 -T 0 -s /bin/true; done >/dev/null 2>&1) &
if [ "$reset" ]; then
    (sleep "$reset"; echo b >/proc/sysrq-trigger) &
fi
echo 'hostile guest'
while :; do echo 'a line that no one wants to read, again and again and again'; done
