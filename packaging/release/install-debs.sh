#!/bin/sh
# Installs the packages in DIRECTORY into the root that it runs in, as the container images have them, and removes what an
# image has no use for. Inside of a chroot (image.py) or a container's build (Containerfile), as root. usage: install-debs.sh DIRECTORY
set -eu
packages=${1:?usage: install-debs.sh DIRECTORY}
export DEBIAN_FRONTEND=noninteractive PYTHONHASHSEED=0 # packages compile their Python as they are installed
# A number, because Kubernetes' runAsNonRoot requires one.
id=64000
echo "sluice-queue:x:$id:$id::/var/lib/sluice-queue:/usr/sbin/nologin" >>/etc/passwd
echo "sluice-queue:x:$id:" >>/etc/group
echo 'sluice-queue:!:19000::::::' >>/etc/shadow
# There are no services to start.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
dpkg -i "$packages"/sluice-common_*.deb "$packages"/sluice-nodeagent_*.deb "$packages"/sluice-queue_*.deb
rm /usr/sbin/policy-rc.d
# The simulator's files are for nodes without a GPU (`simulatedGpus` in the chart). It is not installed: its place in the
# loader's list would hide a real driver's libraries.
dpkg-deb -x "$packages"/sluice-sim_*.deb "$packages/sim"
cp -a "$packages/sim/usr/lib/sluice-sim" /usr/lib/
cp -a "$packages/sim/usr/bin/." /usr/bin/
install -d -m 700 -o $id -g $id /var/lib/sluice-queue
for directory in /var/cache/apt /var/cache/debconf /var/cache/ldconfig /var/lib/apt/lists /var/log /tmp; do
	find "$directory" -mindepth 1 -delete
done
# Files of the machine that builds the image; a build's own mounts stay.
rm -f /etc/machine-id /var/lib/dbus/machine-id
