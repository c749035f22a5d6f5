#!/usr/bin/env bash
# Prints the path of QEMU 10 for x86; downloads it first if necessary (some 100 MB).
#
# An installed QEMU is used if it is new enough. Otherwise the package of bookworm-backports is unpacked, with the
# libraries that it needs, into a cache folder beside the installed one: nothing is installed. Run it again at any time;
# with the cache filled it answers at once. Nodes use it with `transhume node --qemu PATH`.
#
#   scripts/qemu-10.sh        unpacks it if it is missing
#   scripts/qemu-10.sh find   downloads nothing: fails if there is none
#
#   TRANSHUME_QEMU_CACHE      the cache directory (default: /var/cache/transhume/qemu-10 as root,
#                             otherwise ~/.cache/transhume/qemu-10)
set -euo pipefail

readonly least=10.0
readonly program=qemu-system-x86_64
# qemu-img makes qcow2 disks at the destination of a move.
readonly packages=(qemu-system-x86 qemu-utils)
readonly suites='bookworm bookworm-backports'

# shellcheck source=scripts/private-apt.sh
. "$(dirname "$0")/private-apt.sh"

new_enough() { # program
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p')
    at_least "$least" "$version"
}

# The system's loader and C library run it: those in the packages are of the same release or older.
write_wrapper() { # folder with root/, folder where it will lie
    [ -x "$1/root/usr/bin/$program" ] || die "the unpacked packages lack $program"
    cat >"$1/$program" <<WRAPPER
#!/bin/sh
root=$2/root/usr
LD_LIBRARY_PATH=\$root/lib/x86_64-linux-gnu exec "\$root/bin/$program" -L "\$root/share/qemu" -L "\$root/share/seabios" "\$@"
WRAPPER
    chmod 755 "$1/$program"
}

unpack() { # folder, folder where it will lie, archive
    local folder=$1 uri=$3 file
    write_apt_configuration "$folder/apt" "$uri" "$suites"
    private_apt "$folder/apt" -o APT::Update::Error-Mode=any update >&2 ||
        die "cannot reach the Debian archive $uri: connect this machine to it, or install QEMU $least or newer"
    private_apt "$folder/apt" --yes --download-only --target-release bookworm-backports install "${packages[@]}" >&2 ||
        die "the Debian archive $uri does not give QEMU and its libraries: try again later"
    mkdir -p "$folder/root"
    for file in "$folder"/apt/archives/*.deb; do
        case ${file##*/} in
            libc6_* | libc-bin_*) ;;
            *) dpkg-deb -x "$file" "$folder/root" ;;
        esac
    done
    rm -rf "$folder/apt" "$folder/root"/usr/share/{doc,man,locale,icons,info}
    write_wrapper "$folder" "$2"
}

main() {
    local cache installed
    if installed=$(command -v "$program") && new_enough "$installed"; then
        printf '%s\n' "$installed"
        return
    fi
    cache=$(cache_folder qemu-10 "${TRANSHUME_QEMU_CACHE:-}")
    if [ "${1:-}" = find ]; then
        new_enough "$cache/$program" || die "QEMU $least is not here: scripts/qemu-10.sh unpacks it"
    else
        fill_cache "$cache" "$program" "QEMU $least"
    fi
    printf '%s\n' "$cache/$program"
}

main "$@"
