#!/usr/bin/env bash
# Builds the agent of virtual machines (`transhume-guest`) as a static program without dependencies on the guest's
# libraries, beside the libraries of a profile: target/PROFILE/lib/transhume-guest.
#
#   scripts/guest-agent.sh           for target/release
#   scripts/guest-agent.sh debug     for target/debug: the same program
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin

readonly profile=${1:-release}
readonly triple=x86_64-unknown-linux-gnu
readonly target=${CARGO_TARGET_DIR:-target}
case $profile in
release | debug) ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac

# A target directory of its own: other flags would build everything else again.
env -u CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --locked --quiet --release --package guest --bin transhume-guest --target "$triple" \
    --target-dir "$target/guest" --config 'profile.release.strip=true'
mkdir -p "$target/$profile/lib"
# The agent that a test is reading stays whole.
install "$target/guest/$triple/release/transhume-guest" "$target/$profile/lib/.transhume-guest.new"
mv "$target/$profile/lib/.transhume-guest.new" "$target/$profile/lib/transhume-guest"
