#!/usr/bin/env bash
# Runs all tests for `make test`. Each step's output is printed; a summary at the end lists results
# and durations. A failure of formatting, lints or tests does not stop the other steps, but a
# failed build does.
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

# Namespaces and CRIU need root. Other users build as themselves, and run the tests with sudo.
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo 'the tests create network namespaces: run this as root' >&2
        exit 1
    }
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -E'
fi
export PATH=$PATH:$HOME/.cargo/bin CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

# Most tests mostly wait, so lints hardly disturb them. Two cargos in one target directory would wait for each other.
lint() {
    exec nice -n 19 cargo clippy --locked --quiet --workspace --all-targets --target-dir target/lints -- -D warnings
}

# All packages are tested at once after the build: each package has the same features in all steps, and is built once.
# There are no documentation tests, for which cargo would build each library again.
step build cargo build --locked --quiet --workspace --all-targets
[ "$failed" = 0 ] || finish
step format cargo fmt --all --check
lints=$(mktemp)
lint >"$lints" 2>&1 &
linting=$!
trap 'kill $linting 2>/dev/null; rm -f "$lints"' EXIT
step tests cargo test --locked --quiet --no-fail-fast --workspace --lib --bins --tests
step clippy wait $linting
cat "$lints"
finish
