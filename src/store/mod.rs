//! The roles of the store, carried out on `io` as floor 2 decides: writer, builders, readers; and how a store is opened,
//! recovered and closed.
//!
//! A message's way: [`Submitter`] (its shard) → [`Writer`] (the writer core) → [`Builder`] (the shard that owns its
//! queue) and [`IndexBuilder`] (shard 0) → [`ShardStore`] (any shard that is asked for it).

#[cfg(test)]
mod append_tests;
mod births;
mod builder;
mod clean_stop;
mod cold_reads;
mod config_store;
mod deleted;
mod disk_watch;
mod durable;
#[cfg(test)]
mod edge_tests;
mod expiry;
mod index_builder;
mod keeper;
mod layout;
mod open;
mod open_error;
mod opening;
mod outlet;
#[cfg(test)]
mod power_loss;
mod progress;
mod quarantine;
mod queue_folders;
mod queues;
mod read_error;
mod reader;
mod rebuild;
mod recovery;
mod scan_pace;
mod scans;
mod shared;
mod submit;
pub mod survey;
mod sync_call;
#[cfg(test)]
mod test_store;
mod unreadable;
mod whole_ends;
mod writer;

pub use births::Births;
pub use builder::{Builder, OnArrival};
pub use config_store::{ConfigTables, load_table};
pub use deleted::{remove_next as remove_deleted, take_away as take_deleted_away};
pub use disk_watch::{DiskWatch, StorePlace};
pub use durable::DurableUpTo;
pub use expiry::{Expiry, ExpirySettings};
pub use index_builder::IndexBuilder;
pub use keeper::Keeper;
pub use layout::Layout;
pub use open::{Closing, OpenedStore, close, open};
pub use open_error::OpenError;
pub use opening::Opening;
pub use outlet::Outlet;
pub use quarantine::{DamagedRegions, Kind as RegionKind, Region, list as list_quarantine};
pub use queues::{QueueList, QueueReader, QueueRegistry, QueueView, old_queues};
pub use read_error::ReadError;
pub use reader::{Found, GetResult, GetStatus, QueryResult, ShardStore};
pub use rebuild::{RebuildPlan, Rebuilt, rebuild};
pub use scans::Reader;
pub use shared::{
    Doubt, FlushMode, FlushPolicy, Health, LossWindow, Poison, PutFlush, ReadSettings, Shared, StageTimes,
    StoreSettings,
};
pub use submit::{
    LocalWake, Message, PutOutcome, PutRefusal, PutStatus, PutTimes, ReplyBatch, SubmitBatch, Submitter, TagsRule,
};
pub use sync_call::SyncRecord;
pub use writer::{DispatchBatch, DispatchUnit, KeyEntry, Writer, WriterRings, WriterStart};
