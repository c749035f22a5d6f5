#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, one after the other; inputs with new coverage are stored in
# target/fuzz/corpus. The first finding stops the run; its input is in target/fuzz/findings.
#
#   scripts/fuzz.sh run SECONDS [TARGET…]      all targets if none is given
#   scripts/fuzz.sh merge [TARGET…]            adds a minimal set of inputs with the same coverage to fuzz/corpus
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin

readonly triple=x86_64-unknown-linux-gnu
readonly binary=target/fuzz/$triple/fuzz/fuzz

# The instrumentation for libFuzzer, which the stable compiler supports.
readonly coverage=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)

# `--target` keeps the flags from build scripts and macros.
build() {
    RUSTFLAGS="${coverage[*]}" cargo build --locked --quiet --profile fuzz --target "$triple" \
        --target-dir target/fuzz --package fuzz --features libfuzzer
}

all_targets() {
    sed -n 's/.* name: "\([a-z-]*\)".*/\1/p' fuzz/src/lib.rs
}

run() { # seconds, target
    printf '== %s for %s s\n' "$2" "$1"
    mkdir -p "target/fuzz/corpus/$2" "fuzz/corpus/$2" target/fuzz/findings
    FUZZ_TARGET=$2 FUZZ_SEEDS=target/fuzz/corpus/$2 "$binary" -max_total_time="$1" -timeout=10 -rss_limit_mb=1024 -max_len=2048 \
        -use_value_profile=1 -print_final_stats=1 -verbosity=0 -print_funcs=0 -artifact_prefix="target/fuzz/findings/$2-" \
        "target/fuzz/corpus/$2" "fuzz/corpus/$2"
}

merge() { # target
    mkdir -p "target/fuzz/corpus/$1" "fuzz/corpus/$1"
    FUZZ_TARGET=$1 "$binary" -merge=1 -use_counters=0 -max_len=512 -verbosity=0 "fuzz/corpus/$1" "target/fuzz/corpus/$1"
}

command=${1:-run}
shift || true
case $command in
run)
    seconds=${1:-60}
    shift || true
    build
    for target in ${*:-$(all_targets)}; do run "$seconds" "$target"; done
    ;;
merge)
    build
    for target in ${*:-$(all_targets)}; do merge "$target"; done
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
