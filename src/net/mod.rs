//! Sockets: accept, cut frames, keep slow and silent peers from costing anybody else, write answers.
//!
//! Floor 4, on every shard core. It is handed a [`Service`] that answers frames and does not ask where that runs; it
//! knows the frame's outline and nothing of what is in it. Answers of one turn to one connection go out in one write.

mod connection;
mod hub;
mod listener;
mod name_server_link;
mod probe;

pub use connection::Connection;
pub use hub::{Hub, NetLimits};
pub use listener::{listen, serve};
pub use name_server_link::exchange;
pub use probe::{PortTaken, probe};

use std::rc::Rc;

use crate::wire::FrameBounds;

/// Answers frames. Lives on the shard core of its connections.
pub trait Service {
    /// One whole frame has arrived. Answers go through the connection, now or later.
    fn frame(&self, connection: &Rc<Connection>, frame: &[u8], bounds: &FrameBounds);

    /// The connection is gone; nothing that is sent to it arrives any more.
    fn closed(&self, connection: &Rc<Connection>);
}
