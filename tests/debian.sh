# shellcheck shell=bash
# What tests need that a machine may lack, from Debian. To be sourced.

# Installs a Debian package, and keeps what apt says in a file.
install_debian_package() {
    local as_root=() package=$1 log=$2
    command -v apt-get >/dev/null || return 1
    if [[ $(id -u) != 0 ]]; then
        # Without a terminal, sudo must not ask for a password that nobody can type.
        as_root=(sudo)
        [[ -t 0 ]] || as_root=(sudo --non-interactive)
    fi
    echo "$(basename "$0" .sh): installing Debian's package $package" >&2
    {
        "${as_root[@]}" apt-get update &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get install --yes --no-install-recommends "$package"
    } >"$log" 2>&1
}
