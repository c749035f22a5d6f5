#!/usr/bin/env bash
# Builds, checks formatting and lints, and runs the tests. Shows each step's output unchanged; the end lists
# the steps with their results and times. The first failure of formatting, lints or tests does not stop the
# others, a failed build does.
#
#   scripts/test.sh          all tests, as `make test` does: they need root and CRIU
#   scripts/test.sh check    the tests that need neither, with fewer seeds, as `make check` does
set -uo pipefail
cd "$(dirname "$0")/.."

summary=()
failed=0

step() { # name, command
    local name=$1 begin=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        summary+=("$(printf 'ok      %4d s  %s' $((SECONDS - begin)) "$name")")
    else
        summary+=("$(printf 'FAILED  %4d s  %s' $((SECONDS - begin)) "$name")")
        failed=$((failed + 1))
    fi
}

finish() {
    printf '\n== summary\n'
    printf '%s\n' "${summary[@]}"
    if [ "$failed" = 0 ]; then
        printf 'all %d steps passed in %d s\n' "${#summary[@]}" "$SECONDS"
        exit 0
    fi
    printf '%d of %d steps failed\n' "$failed" "${#summary[@]}"
    exit 1
}

case ${1:-} in
'') ;;
check)
    export TRANSHUME_SEEDS_PERCENT=${TRANSHUME_SEEDS_PERCENT:-20}
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
# Hosts of labs would all test KVM, which occupies a processor for a second where it hangs.
export TRANSHUME_WITHOUT_KVM=true
readonly profile=${1:-default}

as_root=()
# Namespaces and CRIU need root. An ordinary user builds as himself and runs all tests as root.
if [ "$profile" = default ] && [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo 'the tests make network namespaces: run this as root, or `make check`' >&2
        exit 1
    }
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -E'
    as_root=(sudo -E)
fi
export PATH=$PATH:$HOME/.cargo/bin CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
nextest=$(scripts/nextest.sh) || exit 1

# Most tests mostly wait, so lints hardly disturb them. Two cargos in one target directory would wait for each other.
lint() {
    exec nice -n 19 cargo clippy --locked --quiet --workspace --all-targets --target-dir target/lints -- -D warnings
}

# The guest that machines of tests boot: mostly it waits for packages, so the build hardly disturbs it.
make_guest() {
    exec nice -n 5 "${as_root[@]}" scripts/guest-image.sh
}

# A renamed test would leave its place in .config/nextest.toml without a word.
check_filters() {
    local name tests missing=0
    tests=$("$nextest" nextest list --locked --workspace --lib --bins --tests --message-format oneline \
        --ignore-default-filter 2>/dev/null) || return 1
    while read -r name; do
        grep -q " $name\$" <<<"$tests" && continue
        printf '.config/nextest.toml names the test %s, which does not exist\n' "$name"
        missing=1
    done < <(sed -n 's/^[^#]*test(=\([^)]*\)).*/\1/p' .config/nextest.toml)
    return $missing
}

# Built before with the same packages, so that nothing is built here, and by no test either.
run_tests() {
    TRANSHUME_BUILT=1 "$nextest" nextest run --locked --workspace --lib --bins --tests --profile "$profile" \
        --test-threads $((2 * $(nproc))) </dev/null
}

# Tests of all packages at once, built before: each package has the same features in all steps, and is built once.
# Documentation has no tests: nextest would not run them.
if [ "$profile" = default ]; then
    guest=$(mktemp)
    make_guest >"$guest" 2>&1 &
    making=$!
    trap 'kill $making 2>/dev/null; rm -f "$guest"' EXIT
fi
step build cargo build --locked --quiet --workspace --all-targets
[ "$profile" != default ] || step agent scripts/guest-agent.sh debug
[ "$failed" = 0 ] || finish
if [ "$profile" = default ]; then
    step guest wait $making
    cat "$guest"
fi
step format cargo fmt --all --check
step filters check_filters
lints=$(mktemp)
lint >"$lints" 2>&1 &
linting=$!
trap 'kill $linting 2>/dev/null; rm -f "$lints" ${guest:+"$guest"}' EXIT
step tests run_tests
step clippy wait $linting
cat "$lints"
finish
