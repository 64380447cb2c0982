//! Counts what the node does: how long each stage of a message takes, how many share a turn, what comes in and goes out.
//!
//! A shaft: any floor may count here. It only counts, and writes what was counted as text ([`Sheet`]); `net` serves that,
//! `node` gathers it. What is counted for each message or request is counted by one core alone ([`Owned`]): plain stores, and
//! no clock is read for it that is not read anyway. [`Counters`] are shared, and only of rare events. What there is to
//! be shown stands in [`catalogue`].

pub mod catalogue;
mod counters;
mod creations;
mod owned;
mod requests;
mod series;
mod sheet;
mod stages;
mod traffic;
mod writer_times;

pub use counters::{Counter, Counters};
pub use creations::Creations;
pub use owned::{BatchSizes, ClassTotals, Classes, Owned, STAGE_ENDS_US, Times};
pub use requests::{REQUEST_ENDS_US, RequestTotals, Requests, request_name, response_name};
pub use series::{MessageType, OTHER, Series};
pub use sheet::{CONTENT_TYPE, Sheet, Value};
pub use stages::{Stage, Stages};
pub use traffic::{PUT_CLASS_ENDS_MS, PUT_CLASSES, Traffic, TrafficTotals};
pub use writer_times::WriterTimes;
