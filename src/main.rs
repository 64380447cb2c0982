//! The `kerolox` program: everything it does is in the library, see `kerolox::cli`.

use std::process::ExitCode;

/// The shards allocate small and short-lived buffers on every core; mimalloc keeps those on the core's own heap.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    kerolox::cli::run()
}
