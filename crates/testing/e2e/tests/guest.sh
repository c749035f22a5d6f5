#!/bin/busybox sh
# The program of a small guest. It counts on the console, answers on the network, writes to memory, and checks its disks.
# If there is an agent, it is started when the guest has begun to count. With the argument seed=DISK, the tools on that disk are installed.
# Kernel arguments: ip=ADDRESS:::MASK::…, dhcp (instead of ip), dirty=MIB, disks=NAMES (such as vda,vdb), sends=ADDRESS (numbers, to
# its port 7700), bulk=ADDRESS (16 MiB, to its port 7701), deaf (to the power button), shell (on the console, instead of counting there).
/bin/busybox mkdir -p /proc /dev /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mkdir -p /sys /dev/pts
mount -t sysfs sysfs /sys
mount -t devpts devpts /dev/pts
while read -r module; do insmod "/modules/$module"; done </modules/order
disks= address= mask= deaf= shell= seed= receiver= bulk=
for word in $(cat /proc/cmdline); do
    case $word in
    ip=*)
        address=${word#ip=}
        mask=${address#*:*:*:}
        ;;
    dhcp) address= ;;
    deaf) deaf=1 ;;
    shell) shell=1 ;;
    dirty=*) (while :; do dd if=/dev/urandom of=/tmp/f bs=64k count=$((${word#dirty=} * 16)) conv=notrunc; done) 2>/dev/null & ;;
    seed=*) seed=${word#seed=} ;;
    bulk=*) bulk=${word#bulk=} ;;
    sends=*) receiver=${word#sends=} ;;
    disks=*) disks=$(echo "${word#disks=}" | tr , ' ') ;;
    esac
done
if [ "$address" ]; then
    ifconfig eth0 "${address%%:*}" netmask "${mask%%:*}" up
else
    ifconfig eth0 up
    # shellcheck disable=SC2016
    printf '#!/bin/sh\n[ "$1" != bound ] || ifconfig eth0 "$ip" netmask "$subnet" mtu "$mtu"\n' >/tmp/lease
    chmod +x /tmp/lease
    udhcpc -i eth0 -n -q -f -O mtu -s /tmp/lease >/dev/null 2>&1 || echo 'BAD: no address by DHCP'
fi
if [ "$receiver" ]; then
    (
        sent=0
        while :; do
            sent=$((sent + 1))
            echo "$sent"
            usleep 10000
        done | nc "$receiver" 7700
        echo 'BAD: the connection is lost'
    ) &
fi
if [ "$bulk" ]; then
    (
        dd if=/dev/urandom of=/tmp/bulk bs=64k count=256 2>/dev/null
        echo "bulk $(md5sum </tmp/bulk)"
        nc "$bulk" 7701 </tmp/bulk
    ) &
fi

if [ ! "$deaf" ]; then
    mkdir -p /etc/acpi/PWRF
    # Without power, the count could not write: it ends first.
    power='touch /tmp/off'
    [ "$shell" ] && power='poweroff -f'
    printf '#!/bin/sh\nexec %s\n' "$power" >/etc/acpi/PWRF/00000080
    chmod +x /etc/acpi/PWRF/00000080
    acpid -l /tmp/acpid.log
fi

if [ "$shell" ]; then
    echo "count 1 ."
    echo "count 2 ."
    echo "count 3 ."
    while :; do setsid cttyhack sh; done
fi

# Block N of 1024 has the last number that was written there, as text of 4096 bytes.
check() { # disk number
    found=$(dd if="/dev/$1" bs=4096 count=1 skip=$(($2 % 1024)) iflag=direct 2>/dev/null)
    [ "$((found))" = "$2" ] || echo "BAD: block $2 of $1 has ${found}"
}

install_tools() {
    mkdir -p /seed
    mount -t vfat -o ro "/dev/$seed" /seed && sh /seed/install.sh || echo 'BAD: no tools'
}

number=0
while [ ! -e /tmp/off ]; do
    number=$((number + 1))
    [ "$number" = 2 ] && [ -x /agent ] && /agent &
    [ "$number" = 2 ] && [ "$seed" ] && install_tools &
    for disk in $disks; do
        printf '%4096d' "$number" | dd of="/dev/$disk" bs=4096 seek=$((number % 1024)) oflag=direct conv=notrunc,fsync 2>/dev/null ||
            echo "BAD: $disk cannot be written"
        [ "$number" -gt 20 ] && check "$disk" $((number - 20))
    done
    echo "count $number ."
    usleep 100000
done
poweroff -f
