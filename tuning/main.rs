//! `kerolox-tune`: the settings of this host that a node depends on. A thin door over the library's `tuning`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
