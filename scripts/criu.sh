#!/usr/bin/env bash
# Prints the path of a new enough CRIU; downloads one first if necessary.
#
# An installed CRIU is used if it is 4.2 or newer and passes `criu check`. Otherwise the Debian package of
# the version below is unpacked, with the libraries it needs, into a cache folder and run there with its own
# loader: nothing is installed, and the machine's apt sources stay as they are. Run it again at any time;
# with the cache filled it answers at once.
#
# The Debian archive keeps one version of a package. Once it has replaced the one below, its own is taken
# with a warning, if that is new enough: the next step is to run the tests with it, and to name it here.
#
#   TRANSHUME_CRIU_CACHE   the cache directory (default: /var/cache/transhume/criu as root,
#                          otherwise ~/.cache/transhume/criu)
set -euo pipefail

readonly least=4.2
readonly package=4.2.1-1
readonly suite=sid

# shellcheck source=scripts/private-apt.sh
. "$(dirname "$0")/private-apt.sh"

new_enough() { # program
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^Version: *v\{0,1\}\([0-9.]*\).*/\1/p')
    at_least "$least" "$version"
}

# `criu check` needs root; otherwise only the version is checked.
works() { # program
    new_enough "$1" && { [ "$(id -u)" != 0 ] || "$1" check >/dev/null 2>&1; }
}

write_wrapper() { # folder with root/, folder where it will lie
    local root=$1/root loader library
    loader=$(find "$root/" -name 'ld-linux*.so.*' | sort | tail -n 1)
    library=$(dirname "$(find "$root/" -name 'libc.so.6' | head -n 1)")
    [ -n "$loader" ] && [ -x "$root/usr/sbin/criu" ] || die "the unpacked packages lack CRIU or its loader"
    cat >"$1/criu" <<WRAPPER
#!/bin/sh
exec "$2${loader#"$1"}" --library-path "$2${library#"$1"}" --argv0 criu "$2/root/usr/sbin/criu" "\$@"
WRAPPER
    chmod 755 "$1/criu"
}

download() { # folder of the private apt, package
    private_apt "$1" --yes --download-only install "$2" >&2
}

unpack() { # folder, folder where it will lie, archive
    local folder=$1 uri=$3 file
    write_apt_configuration "$folder/apt" "$uri" "$suite"
    private_apt "$folder/apt" -o APT::Update::Error-Mode=any update >&2 ||
        die "cannot reach the Debian archive $uri: connect this machine to it, or install CRIU $least or newer"
    download "$folder/apt" "criu=$package" 2>/dev/null || {
        printf 'criu.sh: the Debian archive %s no longer has CRIU %s; taking the version that it has\n' "$uri" "$package" >&2
        download "$folder/apt" criu ||
            die "the Debian archive $uri does not give CRIU and its libraries: try again later"
    }
    mkdir -p "$folder/root"
    for file in "$folder"/apt/archives/*.deb; do
        dpkg-deb -x "$file" "$folder/root"
    done
    rm -rf "$folder/apt" "$folder/root/usr/share/doc"
    write_wrapper "$folder" "$2"
}

main() {
    local cache installed
    if installed=$(PATH=$PATH:/usr/sbin:/sbin command -v criu) && works "$installed"; then
        printf '%s\n' "$installed"
        return
    fi
    cache=$(cache_folder criu "${TRANSHUME_CRIU_CACHE:-}")
    fill_cache "$cache" criu "CRIU $least"
    printf '%s\n' "$cache/criu"
}

main "$@"
