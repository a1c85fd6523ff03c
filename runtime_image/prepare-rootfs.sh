#!/bin/sh
# Turn extracted Debian packages into a root filesystem that runs Python: prepare-rootfs.sh ROOT
#
# Called by build-rootfs.sh as a hook of mmdebstrap, inside its user namespace when it uses one, so
# `chroot` works for an ordinary user too. Does, for what Python needs, the work of the maintainer
# scripts that an extracted system never ran, removes what no program in the sandbox can use, and
# compiles every Python file with the image's own interpreter.
set -eu

root=$1

# --- what maintainer scripts would have made ---------------------------------------------------------

# base-passwd, reduced to the two users there can be.
mkdir -p "$root/etc"
cat >"$root/etc/passwd" <<'PASSWD'
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin
PASSWD
cat >"$root/etc/group" <<'GROUP'
root:x:0:
nogroup:x:65534:
GROUP
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
: >"$root/etc/resolv.conf"
ln -sfn /usr/share/zoneinfo/Etc/UTC "$root/etc/localtime"

# Mount points of the engines and of the bridge (they cannot be made on a read-only root later).
for directory in dev proc sys run root home var/tmp workspace usr/local/bin; do
    mkdir -p "$root/$directory"
done
mkdir -p "$root/tmp"
chmod 1777 "$root/tmp" "$root/var/tmp"

[ -e "$root/bin/sh" ] || ln -s dash "$root/bin/sh"
[ -e "$root/usr/bin/python" ] || ln -s python3 "$root/usr/bin/python"

# update-alternatives: libblas.so.3 and liblapack.so.3 live one directory below the search path.
for libraries in "$root"/usr/lib/*/openblas-serial; do
    [ -d "$libraries" ] && rm -rf "${libraries%/*}/blas" "${libraries%/*}/lapack"
done
for library in "$root"/usr/lib/*/openblas-serial/*.so.[03] "$root"/usr/lib/*/blas/*.so.3 \
    "$root"/usr/lib/*/lapack/*.so.3; do
    [ -e "$library" ] || continue
    directory=$(basename "$(dirname "$library")")
    ln -sf "$directory/$(basename "$library")" "$(dirname "$(dirname "$library")")/"
done

# --- what is not needed ------------------------------------------------------------------------------

# Package manager state, caches, and scripts of packages whose interpreter is not here.
rm -rf "$root/var/lib/dpkg" "$root/var/lib/apt" "$root/var/cache" "$root/var/log" \
    "$root/etc/apt" "$root/etc/dpkg" "$root/var/backups" "$root/boot" "$root/media" "$root/mnt" \
    "$root/srv" "$root/opt" "$root/etc/cron"* "$root/etc/logrotate.d" "$root/etc/update-motd.d" \
    "$root/etc/default" "$root/etc/debconf.conf" "$root/etc/alternatives" "$root/usr/games" \
    "$root/usr/include" "$root/usr/src" "$root/usr/lib/valgrind" "$root/lib/systemd"
mkdir -p "$root/var/cache" "$root/var/lib" "$root/var/log"
rm -f "$root"/usr/bin/dpkg* "$root/usr/bin/py3compile" "$root/usr/bin/py3clean" "$root"/usr/bin/debconf* \
    "$root"/usr/lib/python3/dist-packages/debconf.py
chmod 644 "$root/etc/resolv.conf" "$root/etc/hosts"
# Links to the programs of a compiler, which were left out.
find "$root/usr/bin" -xtype l -delete
# Test suites and headers that come inside packages.
find "$root/usr/lib/python3" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} + \
    2>/dev/null || true
find "$root/usr/lib" \( -name '*.a' -o -name '*.pxd' -o -name '*.h' \) -type f -delete

# Nothing here may gain rights, whatever flags the container is started with.
find "$root" -xdev -type f -perm /6000 -exec chmod ug-s {} +

# --- bytecode and a trial ----------------------------------------------------------------------------

sh "$(dirname "$0")/compile-python.sh" "$root" "/usr/lib/python3.*" /usr/lib/python3/dist-packages

# The build is worth nothing if this does not run.
chroot "$root" /usr/bin/env -i python3 -I -S -c \
    'import asyncio, ctypes, decimal, json, lzma, sqlite3, ssl, sys, zlib, zoneinfo; zoneinfo.ZoneInfo("Europe/Paris")'
if [ -d "$root/usr/lib/python3/dist-packages/pandas" ]; then
    # Leaves matplotlib's list of fonts where the guest finds it: to make one takes 0.15 s of every run
    # that draws, and more where there are more fonts.
    fonts=/usr/local/share/mcp-code-bridge/matplotlib
    chroot "$root" /usr/bin/env -i MPLCONFIGDIR="$fonts" MPLBACKEND=Agg HOME=/tmp python3 -I -B \
        -c "$(cat "$(dirname "$0")/try-data.py")"
    [ -n "$(ls "$root$fonts"/fontlist-*.json)" ]
    chmod -R u=rwX,go=rX "$root$fonts"
fi
# What was asked for besides. Debian calls a package as its module, but for capital letters.
for package in ${MORE_PACKAGES:-}; do
    chroot "$root" /usr/bin/env -i HOME=/tmp MPLBACKEND=Agg python3 -I -B -c \
        'import pkgutil, sys
names = {one.name.lower(): one.name for one in pkgutil.iter_modules()}
name = names.get(sys.argv[1].lower().replace("-", "_"))
name and __import__(name)' "${package#python3-}"
done
rm -rf "$root"/tmp/* "$root"/tmp/.[!.]*
