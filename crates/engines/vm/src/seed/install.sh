#!/bin/sh
# Installs the agent and the RDMA libraries of Transhume in this guest, and starts the agent. Run it as root; again at any time.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=/usr/local/lib/transhume

mkdir -p "$folder"
for file in transhume-guest libibverbs.so.1 librdmacm.so.1; do
    cp "$here/$file" "$folder/.$file.new"
    chmod 755 "$folder/.$file.new"
    mv "$folder/.$file.new" "$folder/$file"
done
ln -sf libibverbs.so.1 "$folder/libibverbs.so"
ln -sf librdmacm.so.1 "$folder/librdmacm.so"

# Before the system's libraries of these names. Without the C library of GNU, only the agent can be used.
if [ -d /etc/ld.so.conf.d ] && command -v ldconfig >/dev/null; then
    echo "$folder" >/etc/ld.so.conf.d/00-transhume.conf
    ldconfig
fi

modprobe virtio_console 2>/dev/null || true
if [ -d /run/systemd/system ]; then
    cat >/etc/systemd/system/transhume-guest.service <<UNIT
[Unit]
Description=Agent of Transhume

[Service]
ExecStart=$folder/transhume-guest
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable transhume-guest.service
    systemctl restart transhume-guest.service
else
    # One that runs already has the port: this one then ends.
    "$folder/transhume-guest" </dev/null >/dev/null 2>&1 &
    echo "start $folder/transhume-guest at each boot"
fi
