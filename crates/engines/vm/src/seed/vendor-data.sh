#!/bin/sh
# cloud-init runs this once in a new guest: it installs the tools of Transhume from their disk.
disk=/run/transhume-tools
mkdir -p "$disk"
mount -o ro LABEL=CIDATA "$disk" || exit
sh "$disk/install.sh"
code=$?
umount "$disk"
exit "$code"
