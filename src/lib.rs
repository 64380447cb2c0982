//! Kerolox: an Apache RocketMQ storage node on io_uring, one thread a core.
//!
//! This file is the map. A message's life runs through it from `wire` to `node` and back: a frame is cut and decoded,
//! the request checked, the record encoded and appended, flushed, dispatched to its consume queue, and pulled again.
//!
//! Rooms stand on floors, and a room uses only what lies on floors below its own:
//!
//! | floor | rooms | what they may do |
//! |------:|-------|------------------|
//! | door | [`cli`] | parse arguments, print, exit |
//! | 5 | [`node`] | know cores, place roles, start and stop |
//! | 4 | [`net`], [`broker`] | sockets; requests and the tables behind them |
//! | 3 | [`store`] | carry out on `io` what floor 2 decides |
//! | 2 | [`log`], [`dispatch`], [`queue`], [`index`] | decide, without I/O, clock or await |
//! | 1 | [`format`](mod@format), [`wire`], [`io`] | bytes on disk; bytes on the wire; files |
//! | 0 | [`types`] | the words of the field |
//! | beside | [`tuning`] | look at the host, and set it right |
//! | shafts | [`config`], [`metrics`] | settings in, numbers out; open to every floor |
//!
//! `docs/ARCHITECTURE.md` tells the story on one page.

// Floor 0
pub mod types;

// Shafts: any floor may read a setting from one or count in the other.
pub mod config;
pub mod metrics;

// Host settings: a folder of its own beside `src`, used by the node at start and by `kerolox-tune`.
#[path = "../tuning/mod.rs"]
pub mod tuning;

// Floor 1
pub mod format;
pub mod io;
pub mod wire;

// Floor 2
pub mod dispatch;
pub mod index;
pub mod log;
pub mod queue;

// Floor 3
pub mod store;

// Floor 4
pub mod broker;
pub mod net;

// Floor 5
pub mod node;

// The door
pub mod cli;
