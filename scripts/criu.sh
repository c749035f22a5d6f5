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

die() {
    printf 'criu.sh: %s\n' "$*" >&2
    exit 1
}

cache_folder() {
    if [ -n "${TRANSHUME_CRIU_CACHE:-}" ]; then
        printf '%s\n' "$TRANSHUME_CRIU_CACHE"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/transhume/criu\n'
    else
        printf '%s/transhume/criu\n' "${XDG_CACHE_HOME:-$HOME/.cache}"
    fi
}

new_enough() { # program
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^Version: *v\{0,1\}\([0-9.]*\).*/\1/p')
    [ -n "$version" ] && [ "$(printf '%s\n' "$least" "$version" | sort -V | head -n 1)" = "$least" ]
}

# `criu check` needs root; otherwise only the version is checked.
works() { # program
    new_enough "$1" && { [ "$(id -u)" != 0 ] || "$1" check >/dev/null 2>&1; }
}

# The Debian archive of this machine's apt.
archive() {
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian Debian //p' | head -n 1
}

private_apt() { # folder, then apt's arguments
    local folder=$1
    shift
    apt-get -qq -c "$folder/apt.conf" "$@"
}

# A private apt: its sources, lists and packages are in the directory, and its list of installed
# packages is empty, so that all dependencies are downloaded. It uses the machine's proxies and keys.
write_apt_configuration() { # folder, archive
    local folder=$1 uri=$2 keyring options=
    for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -r "$keyring" ]; then options="[signed-by=$keyring]"; fi
    done
    mkdir -p "$folder"/{lists,archives}/partial "$folder/none"
    printf 'deb %s %s %s main\n' "$options" "$uri" "$suite" >"$folder/sources.list"
    : >"$folder/status"
    cat >"$folder/apt.conf" <<CONFIGURATION
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "$folder/none";
Dir::Etc::PreferencesParts "$folder/none";
Dir::Etc::Preferences "/dev/null";
Dir::State::Lists "$folder/lists";
Dir::State::Status "$folder/status";
Dir::State::Extended_States "$folder/extended_states";
Dir::Cache::Archives "$folder/archives";
Dir::Cache::PkgCache "";
Dir::Cache::SrcPkgCache "";
Dir::Log "$folder";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
CONFIGURATION
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
    write_apt_configuration "$folder/apt" "$uri"
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
    local cache installed uri
    cache=$(cache_folder)
    if installed=$(PATH=$PATH:/usr/sbin:/sbin command -v criu) && works "$installed"; then
        printf '%s\n' "$installed"
        return
    fi
    if [ -x "$cache/criu" ] && new_enough "$cache/criu"; then
        printf '%s\n' "$cache/criu"
        return
    fi
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        die "neither CRIU $least or newer nor apt is installed: install CRIU $least or newer"
    uri=$(archive)
    [ -n "$uri" ] || die "apt has no Debian archive on this machine: install CRIU $least or newer"

    mkdir -p "$(dirname "$cache")"
    exec 9>"$cache.lock"
    flock 9
    if ! { [ -x "$cache/criu" ] && new_enough "$cache/criu"; }; then
        fresh=$(mktemp -d "$cache.XXXXXX")
        trap 'rm -rf -- "$fresh"' EXIT
        chmod 755 "$fresh"
        unpack "$fresh" "$cache" "$uri"
        rm -rf "$cache"
        mv "$fresh" "$cache"
        new_enough "$cache/criu" || die "the archive's CRIU is older than $least or does not run here"
    fi
    printf '%s\n' "$cache/criu"
}

main "$@"
