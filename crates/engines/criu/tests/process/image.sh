#!/bin/sh
# Writes an image of programs of this machine, with the libraries that they need, as an OCI image layout: in a
# storage of podman's that goes with it, and by podman, whose layouts users have.
#
#   image.sh DIRECTORY CHANGE PROGRAM...      CHANGE is a line as in a Containerfile
set -eu
directory=$1
change=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir -p "$work/root/bin" "$work/root/tmp"
for program; do
    cp "$program" "$work/root/bin"
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$work/root$(dirname "$library")"
        cp -n "$library" "$work/root$library"
    done
done
export TMPDIR="$work"
storage="--root $work/storage --runroot $work/run --storage-driver vfs"
tar -C "$work/root" -c . | podman $storage import --quiet --change "$change" - image >/dev/null
podman $storage image save --quiet --format oci-dir --output "$directory" image
