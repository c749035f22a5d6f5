#!/usr/bin/env bash
# All tests, as `make test` runs them. Each step's output comes as it is; at the end stands what
# passed, what failed, and how long it took. The first failure of formatting, lints or tests does
# not stop the others, a failed build does.
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

# Namespaces and CRIU need root. Whoever is not root builds as himself and runs as root.
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo 'the tests make network namespaces: run this as root' >&2
        exit 1
    }
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -E'
fi
export PATH=$PATH:$HOME/.cargo/bin CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

# Most tests wait most of the time, and lints hardly disturb them. Two cargos in one folder would wait for each other.
lint() {
    exec nice -n 19 cargo clippy --locked --quiet --workspace --all-targets --target-dir target/lints -- -D warnings
}

# Tests of all packages at once, built before: each package has the same features in all steps, and is built once.
# There are no tests in documentation, for which cargo would build each library anew.
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
