#!/bin/sh
# Runs in the image, in the folder with the packages of `make deb`. The words are the command that
# installs them. The user's number is the same in all images, because volumes have it.
set -eu
groupadd -r -g 999 tarn
useradd -r -u 999 -g 999 -d /var/lib/tarn -s /usr/sbin/nologin tarn
"$@" ./*.deb
install -d -o tarn -g tarn -m 750 /var/lib/tarn /var/log/tarn /etc/tarn
install -d -o tarn -g tarn -m 755 /run/tarn
install -m 755 tarn-run tarn-health /usr/local/bin
rm -rf /usr/share/man /usr/share/info /usr/share/locale /usr/share/doc/tarn/docs \
    /var/cache/apt /var/cache/debconf /var/lib/apt/lists /var/log/*.log
