//! Counts what the node does: how long each stage of a message takes, and how many share a turn.
//!
//! A shaft: any floor may count here. It only counts. A core owns its `Stages`, so noting a time costs no synchronisation;
//! `Counters` are shared, and only of rare events; `Traffic` is one core's, for all to read. Showing them to the world (the
//! metrics page) comes with the issue "Measure and tune".

mod counters;
mod stages;
mod traffic;

pub use counters::{Counter, Counters};
pub use stages::{Stage, Stages};
pub use traffic::{PUT_CLASS_ENDS_MS, PUT_CLASSES, Traffic, TrafficTotals};
