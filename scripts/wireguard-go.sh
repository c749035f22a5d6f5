#!/usr/bin/env bash
# Prints the path of wireguard-go, a peer of `make bench-net`, and builds it first if there is none: the
# version below, from the Go module proxy, into a cache folder.
#
#   TRANSHUME_WIREGUARD_CACHE   the cache folder (default: /var/cache/transhume/wireguard-go as root,
#                               otherwise ~/.cache/transhume/wireguard-go)
set -euo pipefail

# `go list -m golang.zx2c4.com/wireguard@latest` names the newest.
readonly module=golang.zx2c4.com/wireguard
readonly version=v0.0.0-20260522210424-ecfc5a8d5446
readonly least_go=1.23.1

die() {
    printf 'wireguard-go.sh: %s\n' "$*" >&2
    exit 1
}

cache_folder() {
    if [ -n "${TRANSHUME_WIREGUARD_CACHE:-}" ]; then
        printf '%s\n' "$TRANSHUME_WIREGUARD_CACHE"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/transhume/wireguard-go\n'
    else
        printf '%s/transhume/wireguard-go\n' "${XDG_CACHE_HOME:-$HOME/.cache}"
    fi
}

# The Go toolchain itself, as it is: it gets no newer one.
go_command() {
    local go found
    go=$(PATH=$PATH:/usr/local/go/bin command -v go) ||
        die "there is no Go: install $least_go or newer from https://go.dev/dl into /usr/local/go"
    found=$(GOTOOLCHAIN=local "$go" env GOVERSION)
    [ "$(printf '%s\n' "$least_go" "${found#go}" | sort -V | head -n 1)" = "$least_go" ] ||
        die "$go is $found: install $least_go or newer from https://go.dev/dl into /usr/local/go"
    printf '%s\n' "$go"
}

build() { # the program's folder
    local go
    go=$(go_command)
    mkdir -p "$(dirname "$1")"
    fresh=$(mktemp -d "$1.XXXXXX")
    trap 'rm -rf -- "$fresh"' EXIT
    chmod 755 "$fresh"
    GOTOOLCHAIN=local GOFLAGS= GOBIN=$fresh "$go" install "$module@$version" >&2 ||
        die "cannot build $module@$version: connect this machine to the Go module proxy"
    # Who was faster has built the same.
    mv -T "$fresh" "$1" 2>/dev/null || [ -x "$1/wireguard" ]
}

main() {
    local folder
    folder=$(cache_folder)/$version
    [ -x "$folder/wireguard" ] || build "$folder"
    printf '%s\n' "$folder/wireguard"
}

main
