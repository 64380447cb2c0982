//! The remoting protocol in bytes: frames, both header types, codes, typed headers and bodies.
//!
//! `net` cuts frames with [`first_frame`] and gives each, decoded as a [`Command`], to the broker; handlers read a
//! typed header or body from it and answer through [`encode_response`] or a [`Response`]. All on the core of the
//! connection.
//!
//! Nothing here does I/O, reads a clock or waits, and bytes from a peer never panic, overrun, or make it allocate by a
//! length that was not checked. What cannot be read as a frame is a [`FrameError`] and ends the connection; fields and
//! bodies that cannot be read are a [`FieldError`] or [`BodyError`] and get an answer.

pub mod batch;
mod binary_header;
mod body;
pub mod client_config;
pub mod cluster;
pub mod code;
mod command;
mod decode;
mod encode;
mod frame;
pub mod headers;
pub mod heartbeat;
mod json_header;
pub mod lists;
pub mod lock;
mod message_queue;
mod peer;
pub mod registration;
mod response;
pub mod route;
mod subscription;

pub use batch::{BatchEntry, BatchError};
pub use body::BodyError;
pub use command::{
    Command, ExtFields, FLAG_ONEWAY, FLAG_RESPONSE, FieldError, Language, VERSION_3_4_9, VERSION_4_9, VERSION_5,
};
pub use encode::{begin_response, encode_request, encode_response};
pub use frame::{FRAME_LEN_MAX, FrameBounds, FrameError, HeaderType, PREFIX_LEN, expected_len, first_frame};
pub use message_queue::MessageQueue;
pub use peer::{ConnId, Peer};
pub use response::Response;
pub use subscription::Subscription;

#[cfg(test)]
mod tests;
