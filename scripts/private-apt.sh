# shellcheck shell=bash
# Sourced by scripts that unpack Debian packages into a folder instead of installing them. The machine's apt sources stay as they are.

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# The folder of that name for unpacked packages, unless the user has chosen another.
cache_folder() { # name, choice
    if [ -n "$2" ]; then
        printf '%s\n' "$2"
    elif [ "$(id -u)" = 0 ]; then
        printf '/var/cache/transhume/%s\n' "$1"
    else
        printf '%s/transhume/%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}" "$1"
    fi
}

# Whether a version, which may be empty, is `least` or newer.
at_least() { # least, version
    [ -n "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# Fills the folder by `unpack`, unless it holds a program that is `new_enough`. Both are functions of the script.
fill_cache() { # cache, program there, its name with the least version
    local cache=$1 file=$2 wanted=$3 uri
    if new_enough "$cache/$file"; then return; fi
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        die "neither $wanted or newer nor apt is installed: install $wanted or newer"
    uri=$(archive)
    [ -n "$uri" ] || die "apt has no Debian archive on this machine: install $wanted or newer"

    mkdir -p "$(dirname "$cache")"
    exec 9>"$cache.lock"
    flock 9
    if new_enough "$cache/$file"; then return; fi
    fresh=$(mktemp -d "$cache.XXXXXX")
    trap 'rm -rf -- "$fresh"' EXIT
    chmod 755 "$fresh"
    unpack "$fresh" "$cache" "$uri"
    rm -rf "$cache"
    mv "$fresh" "$cache"
    new_enough "$cache/$file" || die "the archive has nothing as new as $wanted that runs here"
}

# The Debian archive of this machine's apt.
archive() {
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian Debian //p' | head -n 1
}

private_apt() { # folder, then apt's arguments
    local folder=$1
    shift
    apt-get -qq -c "$folder/apt.conf" "$@"
}

# A private apt: its sources, lists and packages are in the directory, and its list of installed
# packages is empty, so that all dependencies are downloaded. It uses the machine's proxies and keys.
write_apt_configuration() { # folder, archive, releases
    local folder=$1 uri=$2 releases=$3 release keyring options=
    for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -r "$keyring" ]; then options="[signed-by=$keyring]"; fi
    done
    mkdir -p "$folder"/{lists,archives}/partial "$folder/none"
    for release in $releases; do
        printf 'deb %s %s %s main\n' "$options" "$uri" "$release"
    done >"$folder/sources.list"
    : >"$folder/status"
    cat >"$folder/apt.conf" <<CONFIGURATION
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "$folder/none";
Dir::Etc::PreferencesParts "$folder/none";
Dir::Etc::Preferences "/dev/null";
Dir::State::Lists "$folder/lists";
Dir::State::Status "$folder/status";
Dir::State::Extended_States "$folder/extended_states";
Dir::Cache::Archives "$folder/archives";
Dir::Cache::PkgCache "";
Dir::Cache::SrcPkgCache "";
Dir::Log "$folder";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
CONFIGURATION
}
