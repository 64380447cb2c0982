//! The load itself: [`run`] carries out a [`Plan`] and gives a [`RunResult`]. All subcommands that load a broker call it.

mod plan;
pub mod sizes;

use std::fmt;

use hdrhistogram::Histogram;

pub use plan::{Extent, Header, Pace, Plan, Rate, Target, Workload};

use crate::result::RunResult;

/// What an observer of a run hears, on the thread that called [`run`].
pub enum Event<'a> {
    /// What is being done before the first message: one short text a step.
    Preparing(&'a str),
    /// An interval of the warm-up is over.
    Warming(&'a Interval<'a>),
    /// An interval of the measured time is over.
    Measured(&'a Interval<'a>),
}

/// One interval of all threads together. Histograms count nanoseconds.
pub struct Interval<'a> {
    /// Its end, seconds from the start of its phase (warm-up or measured).
    pub until_seconds: f64,
    /// Its length.
    pub seconds: f64,
    /// Of the phase in all; unknown if a count or the end of the queues ends it.
    pub of_seconds: Option<f64>,
    pub published: u64,
    pub failed: u64,
    pub consumed: u64,
    /// How late the schedule was at its worst, ms.
    pub behind_ms: f64,
    pub publish: &'a Histogram<u64>,
    pub end_to_end: &'a Histogram<u64>,
    pub pull: &'a Histogram<u64>,
}

/// Carries out `plan`; `observer` is told what happens at each interval's end.
///
/// # Errors
/// [`Failure`] if the load cannot begin, or no connection to a broker is left. What goes wrong with single messages
/// is counted in [`RunResult::errors`].
pub fn run(plan: &Plan, observer: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, Failure> {
    observer(Event::Preparing("nothing"));
    Err(Failure::Plan(format!("{} cannot be carried out yet", plan.workload)))
}

/// Why there is no result.
#[derive(Debug)]
pub enum Failure {
    /// Settings that do not go together, or not with what is there; the text says what to change.
    Plan(String),
    /// A broker or name server does not do what it must; the text says which and what.
    Peer(String),
    /// The kernel refuses something; the text says what.
    Host(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Plan(text) | Failure::Peer(text) | Failure::Host(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}
