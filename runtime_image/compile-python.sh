#!/bin/sh
# Compile Python files inside a root filesystem with its own interpreter: compile-python.sh ROOT DIR...
#
# A pyc that is checked against its source by timestamp would be ignored if an engine's import changed
# the timestamp, and could not be rewritten on a read-only root. These are never checked: in an image,
# source and bytecode cannot drift apart.
set -eu

root=$1
shift
# A DIR may be a pattern; it is expanded inside ROOT.
for pattern in "$@"; do
    for path in "$root"$pattern; do
        # -W ignore: invalid escapes in packages' docstrings are none of this build's business.
        # -X utf8: there is no locale here. compileall's status is not looked at, because packages carry
        # templates and files for other versions of Python; what has to compile is checked by importing.
        chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin PYTHONHASHSEED=0 \
            python3 -I -W ignore -X utf8 -m compileall -q -f --invalidation-mode unchecked-hash \
            "${path#"$root"}" || true
    done
done
