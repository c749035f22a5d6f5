#!/usr/bin/env bash
# Prints the folder of a small Debian 12 guest for tests of virtual machines, and builds it first if needed
# (as root, under 2 minutes). docs/guests.md describes its files and how to start it.
#
# Packages come from the mirror that apt uses on this machine. The folder is in a cache, in a folder of the
# build's key: the hash of this script, of the guest's own files and of the sources. Run it again at any
# time; with the cache filled it answers at once.
#
#   scripts/guest-image.sh          builds vmlinuz, vmlinux, initrd, disk.img, ssh_key
#   scripts/guest-image.sh saved    also boots the guest once and saves its state: machine, saved.qcow2, saved.state
#   scripts/guest-image.sh find     builds nothing: fails if there is none
#
#   TRANSHUME_GUEST_CACHE           the cache folder (default: /var/cache/transhume/guest)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

readonly suite=bookworm
# The standard kernel: the one for clouds has no rdma_rxe.
readonly kernel=linux-image-amd64
readonly packages=(
    busybox-static kmod iproute2 iputils-ping ethtool openssh-server python3-minimal
    perftest ibverbs-utils ibverbs-providers iperf3 fio openmpi-bin hpcc redis-server redis-tools wireguard-tools
)
# Drivers of hardware that no guest has.
readonly unwanted_modules=(
    sound drivers/{gpu,media,iio,usb,staging,hwmon,hid,input/joystick,input/touchscreen,comedi,mtd,mmc,platform}
    drivers/{ata,bluetooth,firmware,isdn,infiniband/hw,net/ethernet,net/wireless,net/can,md,power,leds,rtc,thunderbolt}
    net/{bluetooth,mac80211,wireless,nfc} fs/{btrfs,ocfs2,gfs2,f2fs,jfs,reiserfs}
)
# Loaded by the initrd, with the modules that they need.
readonly early_modules=(
    virtio_pci virtio_blk virtio_net virtio_console af_packet ext4 crc32c_generic vfat nls_cp437 nls_ascii button evdev
)
# Tests use these; the build fails without them.
readonly required_modules=(rdma_rxe ib_uverbs rdma_ucm sch_netem wireguard nfs nfsv4 nfsd evdev button isofs vfat)
readonly disk_size=2G

die() {
    printf 'guest-image: %s\n' "$*" >&2
    exit 1
}

# The mirrors of Debian that apt uses here, as sources of the guest's release.
sources() {
    local release
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # shellcheck disable=SC2016 # apt replaces these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v old="$release" -v new="$suite" \
            '$3 == "main" && ($2 == old || $2 == old "-updates" || $2 == old "-security") {
                sub(old, new, $2); print "deb", $1, $2, $3 }' | sort -u
}

key() {
    { cat scripts/guest-image.sh scripts/guest/*; sources; } | sha256sum | cut -c 1-16
}

# Unpacks the kernel without its maintainer scripts, which would build Debian's initrd.
unpack_kernel() { # root
    local package
    package=$(apt-cache depends "$kernel" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    mkdir "$1/kernel"
    (cd "$1/kernel" && apt-get -qq -o APT::Sandbox::User=root download "$package")
    dpkg-deb --fsys-tarfile "$1"/kernel/*.deb |
        tar -x -C "$1" --keep-directory-symlink "${unwanted_modules[@]/#/--exclude=./lib/modules/*/kernel/}" ./lib ./boot
    rm -r "$1/kernel"
}

# Called by mmdebstrap, which lets apt see the guest's packages.
customize() { # root
    unpack_kernel "$1"
    local version file
    version=$(ls "$1/lib/modules")
    chroot "$1" depmod "$version"
    chroot "$1" modprobe -S "$version" --show-depends -a "${required_modules[@]}" >/dev/null

    install -d "$1/usr/lib/transhume" "$1/etc/transhume" "$1/root/.ssh"
    for file in boot console hooks lease; do install "scripts/guest/$file" "$1/usr/lib/transhume/$file"; done
    install scripts/guest/guest-address "$1/usr/bin/guest-address"
    install -m 644 scripts/guest/inittab "$1/etc/inittab"
    ln -sf /bin/busybox "$1/sbin/init"
    for file in poweroff reboot halt; do ln -sf /bin/busybox "$1/sbin/$file"; done
    # busybox acpid runs this when the machine's power button is pressed.
    install -d "$1/etc/acpi/PWRF"
    printf '#!/bin/sh\nexec /sbin/poweroff\n' | install /dev/stdin "$1/etc/acpi/PWRF/00000080"
    printf 'guest\n' >"$1/etc/hostname"
    printf '127.0.0.1 localhost guest\n' >"$1/etc/hosts"
    printf 'nameserver 127.0.0.1\n' >"$1/etc/resolv.conf"
    printf "PS1='root@\\h:\\w# '\n" >"$1/root/.bash_profile"
    install -m 600 "$fresh/ssh_key.pub" "$1/root/.ssh/authorized_keys"
}

build_root() { # root
    sources | mmdebstrap --quiet --mode=root --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --customize-hook='APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" scripts/guest-image.sh customize "$1"' \
        "$suite" "$1" - >&2
}

# The kernel as Debian ships it, and uncompressed: QEMU starts that faster. The offsets are those of the
# kernel's boot protocol: setup_sects, payload_offset and payload_length.
copy_kernel() { # root
    local file=$fresh/vmlinuz start size
    cp "$1"/boot/vmlinuz-* "$file"
    start=$((($(number_at 0x1f1 1 "$file") + 1) * 512 + $(number_at 0x248 4 "$file")))
    # The last 4 bytes are the size, for the kernel's own unpacker.
    size=$(($(number_at 0x24c 4 "$file") - 4))
    dd if="$file" bs=1M iflag=skip_bytes,count_bytes skip="$start" count="$size" status=none |
        xz -dc >"$fresh/vmlinux"
    rm -r "$1/boot"
}

number_at() { # offset, bytes, file
    od -A n -t "u$2" -j "$1" -N "$2" "$3"
}

build_initrd() { # root
    local version tree module
    version=$(ls "$1/lib/modules")
    tree=$fresh/initrd.d
    mkdir -p "$tree"/{bin,dev,proc,root,modules}
    cp "$1/bin/busybox" "$tree/bin/busybox"
    install scripts/guest/initrd-init "$tree/init"
    chroot "$1" modprobe -S "$version" --show-depends -a "${early_modules[@]}" |
        awk '$1 == "insmod" && !seen[$2]++ && $2 !~ /crc32c-intel/ { print $2 }' >"$tree/paths"
    while read -r module; do
        cp "$1$module" "$tree/modules/"
        basename "$module" >>"$tree/modules/order"
    done <"$tree/paths"
    rm "$tree/paths"
    (cd "$tree" && find . | cpio --quiet -o -H newc) >"$fresh/initrd"
    rm -r "$tree"
}

build_disk() { # root
    truncate -s "$disk_size" "$fresh/disk.img"
    mkfs.ext4 -q -L guest -E lazy_itable_init=1 -O ^metadata_csum -d "$1" "$fresh/disk.img"
}

# Called in a mount namespace of its own, so that the root in memory goes away with it.
build() {
    local root=$fresh/root
    mkdir "$root"
    mount -t tmpfs -o size=3G,mode=755 tmpfs "$root"
    ssh-keygen -q -t ed25519 -N '' -C guest -f "$fresh/ssh_key"
    build_root "$root"
    copy_kernel "$root"
    build_initrd "$root"
    build_disk "$root"
}

# The saved guest's arguments except its back ends, one on a line. A state fits these only.
machine_arguments() {
    printf '%s\n' -machine pc-q35-7.2 -accel tcg,thread=multi -cpu qemu64 -smp 1 -m 512 \
        -nodefaults -display none -serial chardev:serial \
        -device pcie-root-port,id=port0,chassis=1 -device pcie-root-port,id=port1,chassis=2 \
        -device virtio-blk-pci,drive=disk -device virtio-net-pci,netdev=net \
        -device virtio-serial-pci,id=serial0
}

# Boots the guest, and writes its state when it is ready.
save() { # folder
    local folder=$1 machine
    machine_arguments >"$fresh/machine"
    mapfile -t machine <"$fresh/machine"
    qemu-img create -q -f qcow2 -F raw -b "$folder/disk.img" "$fresh/saved.qcow2"
    : >"$fresh/console"
    { until grep -q 'guest is ready' "$fresh/console"; do sleep 0.2; done
      printf 'stop\nmigrate "exec:cat >%q"\nquit\n' "$fresh/saved.state"
    } | timeout 120 qemu-system-x86_64 "${machine[@]}" -monitor stdio \
        -kernel "$folder/vmlinux" -initrd "$folder/initrd" \
        -append 'console=ttyS0 quiet init_on_free=1 transhume.address=none' \
        -drive "if=none,id=disk,format=qcow2,file=$fresh/saved.qcow2" -netdev user,id=net,restrict=on \
        -chardev "file,id=serial,path=$fresh/console" >/dev/null
    [ -s "$fresh/saved.state" ] || die "the guest could not be saved: $(tail -n 5 "$fresh/console")"
    rm "$fresh/console"
    mv "$fresh"/* "$folder/"
}

readonly cache=${TRANSHUME_GUEST_CACHE:-/var/cache/transhume/guest}

# Runs a step with a new folder `fresh` in the cache, which is removed afterwards.
with_fresh_folder() { # step, its arguments
    fresh=$(mktemp -d "$cache/.fresh.XXXXXX")
    export fresh
    trap 'rm -rf -- "$fresh"' EXIT
    chmod 755 "$fresh"
    "$@"
    rm -rf -- "$fresh"
}

build_into() { # folder
    unshare --mount scripts/guest-image.sh build
    rmdir "$fresh/root"
    rm "$fresh/ssh_key.pub"
    mv "$fresh" "$1"
}

locked() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
}

image() { # folder
    [ ! -d "$1" ] || return 0
    [ "$(id -u)" = 0 ] || die 'run this as root: it makes a root file system'
    [ -n "$(sources)" ] || die 'apt has no source of Debian here: the packages of the guest come from one'
    command -v mmdebstrap >/dev/null || die 'mmdebstrap is missing: run scripts/setup.sh guest'
    locked
    # A build that was killed.
    rm -rf -- "$cache"/.fresh.*
    # Guests of other versions that nobody has asked for in a week.
    find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +7 -exec rm -rf -- {} +
    [ -d "$1" ] || with_fresh_folder build_into "$1"
}

saved() { # folder
    image "$1"
    [ ! -e "$1/saved.state" ] || return 0
    locked
    [ -e "$1/saved.state" ] || with_fresh_folder save "$1"
}

# Steps of a build, which this script calls.
case ${1:-} in
    build)
        build
        exit
        ;;
    customize)
        customize "$2"
        exit
        ;;
esac
folder=$cache/$(key)
case ${1:-} in
    '') image "$folder" ;;
    saved) saved "$folder" ;;
    find) [ -d "$folder" ] || exit 1 ;;
    *) die "unknown command \`$1\`: give \`saved\`, \`find\`, or nothing" ;;
esac
[ ! -w "$folder" ] || touch -- "$folder"
printf '%s\n' "$folder"
