#!/bin/sh
# container.sh ROOT NAME HOSTS SHM DIRECTORY USER [NAME=VALUE...] COMMAND...: runs COMMAND in ROOT as a container would: with
# its own /proc, /dev and /dev/shm (of SHM), the host name NAME, and HOSTS as /etc/hosts. Needs root, and namespaces of mounts,
# names and processes that the caller has made: all mounts and processes go away with them.
set -eu
root=$1 name=$2 hosts=$3 shm=$4 directory=$5 user=$6
shift 6
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
while read -r device major minor; do
  mknod -m 666 "$root/dev/$device" c "$major" "$minor"
done <<DEVICES
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
DEVICES
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs -o "size=$shm,mode=1777" shm "$root/dev/shm"
touch "$root/etc/hosts"
mount --bind "$hosts" "$root/etc/hosts"
echo "$name" >/proc/sys/kernel/hostname
ip link set lo up
# shellcheck disable=SC2016
exec env -i /usr/sbin/chroot --userspec="$user" "$root" /usr/bin/env "HOSTNAME=$name" \
  /bin/sh -c 'cd "$1"; shift; exec /usr/bin/env "$@"' sh "$directory" "$@"
