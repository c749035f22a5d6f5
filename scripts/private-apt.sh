# shellcheck shell=bash
# Sourced by scripts that unpack Debian packages into a folder instead of installing them. The machine's apt sources stay as they are.

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
