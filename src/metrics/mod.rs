//! Counts what the node does: how long each stage of a message takes, and how many share a turn.
//!
//! A shaft: any floor may count here. It only counts; a core owns its `Stages` and nobody else touches them, so counting
//! costs no synchronisation. Showing them to the world (the metrics page) comes with the issue "Measure and tune".

mod stages;

pub use stages::{Stage, Stages};
