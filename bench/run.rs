//! `kerolox-bench run`: one load, one result.

use std::process::ExitCode;

use crate::cli::{LoadArgs, TargetArgs};
use crate::load;
use crate::machine::{Machine, MachineArgs};

/// Run one load and print what it measured
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Names this run in its results
    #[arg(long, default_value = "")]
    label: String,
    /// The broker's process: its processor time a message and its memory are measured
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    machine: MachineArgs,
}

pub fn run(args: Args) -> ExitCode {
    let plan = match args.load.plan(args.target.target(), &args.label, args.pid) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("kerolox-bench: {why}");
            return ExitCode::from(2);
        }
    };
    let machine = Machine::look(&args.machine, &plan.target);
    match load::run(&plan, &mut |_| {}) {
        Ok(mut result) => {
            result.machine = machine.to_json();
            println!("{}", serde_json::to_string(&result).expect("a result is JSON"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("kerolox-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
