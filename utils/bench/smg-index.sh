#!/bin/bash
# The index of the engines' blocks beside that of SMG (Shepherd Model Gateway), on the same events
# and look-ups.
#
#     smg-index.sh EVENT_TREE_RS [PAIRS [HOLDERS [BLOCKS [JUMP]]]]        10000000 200 48 64
#
# EVENT_TREE_RS is crates/kv_index/src/event_tree.rs of a checkout of SMG; BLOCKS how many an event
# has at most; JUMP its jump_size, which is 64 there. Its tests are cut off, and cargo (Rust 1.65 or
# later) builds it from Debian's packages of what it needs: librust-dashmap-dev
# librust-rustc-hash-dev librust-xxhash-rust-dev. The events take some 40 bytes a block of disk in
# TMPDIR for the time of a run.
takes=1
. "$(dirname "$0")/lib.sh"
need cargo
source_file=${1:?EVENT_TREE_RS is missing (--help)}
pairs=${2:-10000000} holders=${3:-200} blocks=${4:-48} jump=${5:-64}

make -s build/release/tests/tools/route_index >&2
peer=$bench_dir/peer
mkdir -p "$peer/src" "$peer/.cargo"
cp utils/bench/smg-index/main.rs "$peer/src/"
# Debian's rustc-hash is 1.1, which names the builder of its hashers in another way; `tracing` is
# for one warning.
sed -e '/^#\[cfg(test)\]/,$d' -e '/tracing::warn!/d' \
    -e 's/use rustc_hash::{FxBuildHasher,/use rustc_hash::{FxHasher,/' \
    -e 's/(\(.*\), FxBuildHasher\([,)]\)/(\1, FxBuildHasher::default()\2/' \
    -e 's/shard_amount(FxBuildHasher,/shard_amount(FxBuildHasher::default(),/' \
    "$source_file" >"$peer/src/event_tree.rs"
echo 'type FxBuildHasher = std::hash::BuildHasherDefault<FxHasher>;' >>"$peer/src/event_tree.rs"
cat >"$peer/Cargo.toml" <<'EOF'
[package]
name = "smg-index"
version = "0.1.0"
edition = "2021"
[dependencies]
dashmap = "5"
rustc-hash = "1"
xxhash-rust = { version = "0.8", features = ["xxh3"] }
[profile.release]
lto = "fat"
codegen-units = 1
EOF
cat >"$peer/.cargo/config.toml" <<'EOF'
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "/usr/share/cargo/registry"
EOF
(cd "$peer" && cargo build --release --offline --quiet 2>"$bench_dir/cargo.log") ||
    { cat "$bench_dir/cargo.log" >&2; exit 1; }

for round in $(seq 1 "$ROUNDS"); do
    echo "round $round: tarn"
    build/release/tests/tools/route_index "$pairs" "$holders" 50000 "$blocks" "$bench_dir/events"
    echo "round $round: SMG, jumps of $jump"
    "$peer/target/release/smg-index" "$bench_dir/events" "$jump"
done
