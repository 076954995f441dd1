# Becomes systemd, as process 1 of new namespaces, over an overlay of the host's root. $1 is a folder
# with the program, the unit and the files of the machine guest1. Ends with the namespaces.
set -eu
mount --make-rprivate /
top=$(mktemp -d)
mount -t tmpfs exoprobe "$top"
cd "$top"
mkdir up work root
mount -t overlay exoprobe -o lowerdir=/,upperdir=up,workdir=work root
install -D -t root/srv/guest "$1"/{snapshot,vmlinux,initramfs.cpio}
cp "$1/exoprobe" root/usr/bin/
rm -rf root/etc/systemd/system/*.wants
cp "$1/exoprobe@.service" root/etc/systemd/system/
mkdir -p root/etc/exoprobe
cat >root/etc/exoprobe/guest1.toml <<'FILE'
restore = "/srv/guest/snapshot"
kernel = "/srv/guest/vmlinux"
initramfs = "/srv/guest/initramfs.cpio"
FILE
grep -q '^kvm:' root/etc/group || echo 'kvm:x:65500:' >>root/etc/group
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mount -t tmpfs -o mode=755 dev dev
mkdir dev/shm dev/pts
ln -s /proc/self/fd dev/fd
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 kvm:10:232; do
    IFS=: read -r name major minor <<<"$device"
    mknod -m 666 "dev/$name" c "$major" "$minor"
done
chgrp "$(sed -n 's/^kvm:[^:]*:\([0-9]*\):.*/\1/p' etc/group)" dev/kvm
chmod 660 dev/kvm
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=exoprobe PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=0
