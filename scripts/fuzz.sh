#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, one after the other; inputs that reach something new are kept in
# target/fuzz/corpus. The first finding ends it: the input is in target/fuzz/findings.
#
# fuzz/corpus/TARGET.tar.gz holds the inputs of each target; the same inputs give the same archive.
#
#   scripts/fuzz.sh run SECONDS [TARGET…]      all targets if none is named
#   scripts/fuzz.sh merge [TARGET…]            adds to the archives the fewest inputs that reach what is reached
#   scripts/fuzz.sh unpack [TARGET…]           writes the inputs of the archives to target/fuzz/archived
#   scripts/fuzz.sh pack [TARGET…]             writes the archives from target/fuzz/archived
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin

readonly triple=x86_64-unknown-linux-gnu
readonly binary=target/fuzz/$triple/fuzz/fuzz

# The instrumentation that libFuzzer reads: the compiler has it, and the stable one lets it be asked for.
readonly coverage=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)

# `--target` keeps the flags from build scripts and macros, which are programs of their own.
build() {
    RUSTFLAGS="${coverage[*]}" cargo build --locked --quiet --profile fuzz --target "$triple" \
        --target-dir target/fuzz --package fuzz --features libfuzzer
}

all_targets() {
    sed -n 's/.* name: "\([a-z-]*\)".*/\1/p' fuzz/src/lib.rs
}

# An archive's inputs lie here between `unpack` and `pack`.
archived() { # target
    printf 'target/fuzz/archived/%s\n' "$1"
}

unpack() { # target
    local archive=fuzz/corpus/$1.tar.gz folder
    folder=$(archived "$1")
    rm -rf "$folder"
    mkdir -p "$folder" "target/fuzz/corpus/$1"
    if [ -e "$archive" ]; then tar --extract --gzip --file "$archive" --directory "$folder"; fi
}

# Neither times nor owners nor the order of the folder's files show in the archive.
pack() { # target
    mkdir -p fuzz/corpus
    (cd "$(archived "$1")" && find . -type f -printf '%P\0') | LC_ALL=C sort --zero-terminated |
        tar --create --directory "$(archived "$1")" --null --files-from=- --format=ustar --mtime=@0 \
            --owner=0 --group=0 --numeric-owner --mode=a=r,u+w |
        gzip --no-name --best >"fuzz/corpus/$1.tar.gz"
}

run() { # seconds, target
    printf '== %s for %s s\n' "$2" "$1"
    unpack "$2"
    mkdir -p target/fuzz/findings
    FUZZ_TARGET=$2 FUZZ_SEEDS=target/fuzz/corpus/$2 "$binary" -max_total_time="$1" -timeout=10 -rss_limit_mb=1024 -max_len=2048 \
        -use_value_profile=1 -print_final_stats=1 -verbosity=0 -print_funcs=0 -artifact_prefix="target/fuzz/findings/$2-" \
        "target/fuzz/corpus/$2" "$(archived "$2")"
}

merge() { # target
    unpack "$1"
    FUZZ_TARGET=$1 "$binary" -merge=1 -use_counters=0 -max_len=512 -verbosity=0 "$(archived "$1")" "target/fuzz/corpus/$1"
    pack "$1"
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
unpack | pack)
    for target in ${*:-$(all_targets)}; do "$command" "$target"; done
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
