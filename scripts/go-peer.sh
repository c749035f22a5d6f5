#!/usr/bin/env bash
# Prints the directory with the programs of a peer of `make bench-net` that is written in Go; builds them first if
# necessary: the version below, from the Go module proxy, into a cache directory.
#
#   scripts/go-peer.sh wireguard-go|nebula
#
#   TRANSHUME_GO_PEERS_CACHE   parent of the cache directories (default: /var/cache/transhume as root, otherwise
#                              ~/.cache/transhume)
set -euo pipefail

die() {
    printf 'go-peer.sh: %s\n' "$*" >&2
    exit 1
}

# `go list -m MODULE@latest` prints the newest version.
choose() { # the peer
    case $1 in
    wireguard-go)
        version=v0.0.0-20260522210424-ecfc5a8d5446
        least_go=1.23.1
        packages=(golang.zx2c4.com/wireguard)
        ;;
    nebula)
        # The newest version with dependencies that the proxy has, and that Go before 1.27 can build.
        version=v1.11.0
        least_go=1.26.0
        packages=(github.com/slackhq/nebula/cmd/nebula github.com/slackhq/nebula/cmd/nebula-cert)
        ;;
    *) die "unknown peer \`$1\`: use wireguard-go or nebula" ;;
    esac
    readonly version least_go packages
}

cache_folder() {
    if [ -n "${TRANSHUME_GO_PEERS_CACHE:-}" ]; then
        printf '%s\n' "$TRANSHUME_GO_PEERS_CACHE"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/transhume\n'
    else
        printf '%s/transhume\n' "${XDG_CACHE_HOME:-$HOME/.cache}"
    fi
}

# The installed Go toolchain; it must not download a newer one.
go_command() {
    local go found
    go=$(PATH=$PATH:/usr/local/go/bin command -v go) ||
        die "Go is not installed: install $least_go or newer from https://go.dev/dl into /usr/local/go"
    found=$(GOTOOLCHAIN=local "$go" env GOVERSION)
    [ "$(printf '%s\n' "$least_go" "${found#go}" | sort -V | head -n 1)" = "$least_go" ] ||
        die "$go is $found: install $least_go or newer from https://go.dev/dl into /usr/local/go"
    printf '%s\n' "$go"
}

build() { # the programs' folder
    local go
    go=$(go_command)
    mkdir -p "$(dirname "$1")"
    fresh=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf -- "$fresh"' EXIT
    chmod 755 "$fresh"
    GOTOOLCHAIN=local GOFLAGS= GOBIN=$fresh "$go" install "${packages[@]/%/@$version}" >&2 ||
        die "cannot build ${packages[*]} $version: connect this machine to the Go module proxy"
    # A concurrent build has produced the same files.
    mv -T "$fresh" "$1" 2>/dev/null || is_built "$1"
}

is_built() { # the programs' folder
    local package
    for package in "${packages[@]}"; do
        [ -x "$1/${package##*/}" ] || return 1
    done
}

main() { # the peer
    local folder
    choose "${1:-}"
    folder=$(cache_folder)/$1/$version
    is_built "$folder" || build "$folder"
    printf '%s\n' "$folder"
}

main "$@"
