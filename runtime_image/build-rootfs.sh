#!/bin/sh
# Build the runtime image's root filesystem from Debian packages, with no image registry involved.
#
#   build-rootfs.sh [--base BASE.tar] [--guest-bundle DIR] [--package 'NAME ...']... slim|data OUTPUT.tar
#
# DIR is copied to /usr/local/lib/mcp-code-bridge/guest as it is and compiled; its layout is
# <digest>/bridge/guest/**/*.py. BASE.tar, an earlier output without a guest, saves the slow part. Each
# --package adds the first of its names that Debian has.
#
# Writes a tarball for `podman import` or `docker import`; the settings that go with it (environment,
# labels, user) are printed by `build-rootfs.sh --changes FLAVOUR`, one Dockerfile instruction a line.
# Works as root, and as an ordinary user who may make user namespaces (`mmdebstrap --mode=auto`).
#
# The packages are extracted, not installed: no package manager, no maintainer script and no shell of
# theirs ends up in the image. What those scripts would have done and Python needs is done in
# prepare-rootfs.sh, which runs once the files are in place.
#
# The mirror, its keys, proxies and the like are the machine's own, read from apt.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
image_version=$(cat "$here/VERSION")

usage() {
    echo "usage: build-rootfs.sh [--base BASE.tar] [--guest-bundle DIR] [--package 'NAME ...']..." \
        "slim|data OUTPUT.tar" >&2
    echo "       build-rootfs.sh --changes slim|data" >&2
    exit 2
}

fail() {
    echo "build-rootfs: $1" >&2
    exit 1
}

# The words of a file, without its comments, one a line.
list_of() {
    sed 's/#.*//' "$here/$1" | tr -s '[:space:]' '\n' | sed '/^$/d'
}

print_changes() {
    cat <<CHANGES
ENV PATH=/usr/local/bin:/usr/bin:/bin
ENV LANG=C.UTF-8
ENV HOME=/tmp
ENV PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 65534:65534
CMD ["python3"]
LABEL org.mcp-code-bridge.image.version=$image_version
LABEL org.mcp-code-bridge.image.flavour=$1
CHANGES
}

guest_bundle=
base=
wanted=
while [ $# -gt 0 ]; do
    case $1 in
    --guest-bundle)
        [ $# -ge 2 ] || usage
        guest_bundle=$2
        shift 2
        ;;
    --base)
        [ $# -ge 2 ] || usage
        base=$2
        shift 2
        ;;
    --package)
        [ $# -ge 2 ] || usage
        wanted="$wanted$2
"
        shift 2
        ;;
    --changes)
        [ $# -eq 2 ] || usage
        print_changes "$2"
        exit 0
        ;;
    -*) usage ;;
    *) break ;;
    esac
done
[ $# -eq 2 ] || usage
flavour=$1
output=$2
[ -f "$here/packages-$flavour.txt" ] || usage
if [ -n "$guest_bundle" ] && [ ! -d "$guest_bundle" ]; then
    fail "no such directory: $guest_bundle"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# mmdebstrap may run the hooks as another user (unshare mode), who has to read them.
chmod 755 "$scratch"

# --- sources: what this machine's apt uses for its own Debian release ------------------------------

list_sources() {
    apt-get "$@" indextargets \
        --format '$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)' 'Created-By: Packages' |
        while IFS='|' read -r name uri suite component origin; do
            case "$origin/$name" in
            Debian/"$codename" | Debian/"$codename"-*) echo "deb $uri $suite $component" ;;
            esac
        done | sort -u
}

write_sources() {
    list_sources >"$scratch/sources.list"
    if [ ! -s "$scratch/sources.list" ]; then
        # A machine whose package lists were cleaned away: fetch them, but not into its directories.
        mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
        apt_options="-o Dir::State::Lists=$scratch/lists -o Dir::Cache=$scratch/cache"
        apt_options="$apt_options -o Debug::NoLocking=1"
        apt-get $apt_options --quiet update >&2 || fail "apt-get update failed"
        list_sources $apt_options >"$scratch/sources.list"
    fi
    [ -s "$scratch/sources.list" ] ||
        fail "apt has no Debian $codename source; add one to /etc/apt/sources.list.d"
}

# The packages to add, one for each line of names.
choose_packages() {
    printf %s "$wanted" | while read -r names; do
        for name in $names; do
            if apt-cache $apt_options show --no-all-versions "$name" >/dev/null 2>&1; then
                echo "$name"
                continue 2
            fi
        done
        fail "no package of Debian $codename is called $(echo "$names" | sed 's/ / or /g')"
    done
}

# --- settings for apt (how to reach the mirror) and dpkg (what to leave out) ------------------------

write_settings() {
    apt-config dump |
        grep -E '^Acquire::(https?|Check-Valid-Until|Check-Date|Retries|ForceIPv4)' |
        grep -v '""; *$' >"$scratch/apt.conf" || true
    cat >>"$scratch/apt.conf" <<'APT'
Acquire::Languages "none";
APT::Install-Recommends "false";
APT
    list_of excluded-paths.txt | sed 's/^/path-exclude=/' >"$scratch/dpkg.cfg"
}

# --- the packages' files, made ready by prepare-rootfs.sh -------------------------------------------

build_base() {
    for tool in mmdebstrap apt-get apt-config; do
        command -v "$tool" >/dev/null ||
            fail "$tool is not installed; on Debian: apt-get install mmdebstrap"
    done
    . /etc/os-release
    codename=${VERSION_CODENAME:-}
    [ -n "$codename" ] || fail "/etc/os-release names no release (VERSION_CODENAME)"
    apt_options=
    write_sources
    write_settings
    MORE_PACKAGES=$(choose_packages)
    export MORE_PACKAGES
    cp "$here/prepare-rootfs.sh" "$here/compile-python.sh" "$here/try-data.py" "$scratch/"
    # Its own clean-up would look for files that prepare-rootfs.sh has removed; with TMPDIR in the
    # scratch directory nothing of it can stay. Device nodes come from the engine.
    TMPDIR=$scratch mmdebstrap --quiet --variant=extract --skip=cleanup,output/dev --format=tar \
        --include="$({ list_of "packages-$flavour.txt"; echo "$MORE_PACKAGES"; } | sed "/^$/d" | paste -sd, -)" \
        --aptopt="$scratch/apt.conf" --dpkgopt="$scratch/dpkg.cfg" \
        --extract-hook="sh '$scratch/prepare-rootfs.sh' \"\$1\"" \
        "$codename" "$1" "$scratch/sources.list" >&2 ||
        fail "mmdebstrap could not build the root filesystem (its own message is above)"
}

# --- the guest package, compiled with the image's own Python ---------------------------------------

add_guest() {
    root=$scratch/root
    library=usr/local/lib/mcp-code-bridge
    mkdir -p "$root"
    tar --extract --file "$1" --directory "$root" --no-same-owner
    mkdir -p "$root/$library/guest"
    # What the host's Python has compiled does not belong here.
    (cd "$guest_bundle" && find . -type f ! -path '*/__pycache__/*' | tar --create --files-from -) |
        tar --extract --directory "$root/$library/guest" --no-same-owner
    chmod -R u=rwX,go=rX "$root/$library"
    if [ "$(id -u)" -eq 0 ]; then
        sh "$here/compile-python.sh" "$root" "/$library"
    else
        unshare --map-root-user sh "$here/compile-python.sh" "$root" "/$library"
    fi
    tar --append --file "$1" --directory "$root" --owner=0 --group=0 --numeric-owner \
        --sort=name --mtime="@$SOURCE_DATE_EPOCH" "./$library"
    chmod -R u+w "$root"
}

# --- build ------------------------------------------------------------------------------------------

# Files newer than this recipe get its timestamp, so that the same packages give the same tarball.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date -u -r "$here/VERSION" +%s)}
export SOURCE_DATE_EPOCH

partial=$output.partial
trap 'rm -rf "$scratch" "$partial"' EXIT
if [ -n "$base" ]; then
    cp "$base" "$partial"
else
    build_base "$partial"
fi
if [ -n "$guest_bundle" ]; then
    add_guest "$partial"
fi
mv "$partial" "$output"
