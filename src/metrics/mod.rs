//! Counts what the node does: how long each stage of a message takes, and how many share a turn.
//!
//! A shaft: any floor may count here. It only counts. A core owns its `Stages`, so noting a time costs no synchronisation;
//! `Counters` are shared, and only of rare events. Showing them to the world (the metrics page) comes with the issue "Measure and tune".

mod counters;
mod stages;

pub use counters::{Counter, Counters};
pub use stages::{Stage, Stages};
