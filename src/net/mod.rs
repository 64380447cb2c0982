//! Sockets: accept, cut frames, keep slow and silent peers from costing anybody else, write answers.
//!
//! Floor 4, on every shard core. It is handed a [`Service`] that answers frames and does not ask where that runs; it
//! knows the frame's outline and nothing of what is in it. Answers of one turn to one connection go out in one write.
//! Beside them [`HttpServer`], a thread of its own.

mod connection;
mod http;
mod hub;
mod listener;
mod name_server_link;
mod probe;

pub use connection::Connection;
pub use http::{HttpServer, Limits as HttpLimits, Page};
pub use hub::{Hub, Member, NetLimits, StallTimes};
pub use listener::{BACKLOG_LEN, listen, serve};
pub use name_server_link::exchange;
pub use probe::{PortClaim, PortTaken, claim};

use std::rc::Rc;
use std::time::Duration;

use crate::wire::FrameBounds;

/// Long enough not to be over at once, short beside the work that it interrupts.
const PAUSE: Duration = Duration::from_micros(10);

/// Lets everything else on this core go first, what the kernel has completed included. A mere yield would not: beside a
/// task that can always run, glommio looks at completions only when its preempt timer fires, every 100 ms.
async fn pause() {
    crate::io::sleep(PAUSE).await;
}

/// Whether the service takes more frames of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Left,
    /// This frame was taken, but what it goes through is full: no more before [`Service::has_room`].
    Full,
}

/// Answers frames. Lives on the shard core of its connections.
pub trait Service {
    /// Comes before the first of every few frames, which all count as arrived at this moment: looking at clocks for each would
    /// be a good part of its cost.
    fn arriving(&self);

    /// One whole frame has arrived. Answers go through the connection, now or later.
    fn frame(&self, connection: &Rc<Connection>, frame: &[u8], bounds: &FrameBounds) -> Room;

    /// Is there room again, for those that were told [`Room::Full`]?
    fn has_room(&self) -> bool;

    /// The connection is gone; nothing that is sent to it arrives any more.
    fn closed(&self, connection: &Rc<Connection>);
}
