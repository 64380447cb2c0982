//! Settings of the host that the node depends on: what is there, what is wanted, why, and how to get it.
//!
//! A library module: the node runs the checks at its start, warns, and refuses where it cannot do without;
//! `kerolox-tune` shows, applies and undoes. Runs on a plain thread, never on an executor: it reads files of `/proc` and
//! `/sys`, which may block.
//!
//! [`settings`] has one file a setting. Its check looks at a [`Host`] and gives [`Finding`]s; a finding that can be put
//! right at run time carries the [`Change`]s that do so, each with what was there before and how to get back. [`apply`]
//! writes them, having noted all of it in the [`record`], and [`undo`] takes them back. So looking changes nothing, and
//! nothing is changed of which the way back is not on stable storage.
//!
//! Beside the settings: [`probe`] measures the file system of a store, and [`recommend`] turns what it found into settings
//! of the node. Neither looks at or changes the host's.

pub mod apply;
pub mod finding;
pub mod host;
pub mod place;
pub mod probe;
pub mod recommend;
pub mod record;
pub mod settings;
#[cfg(test)]
mod test_tree;
pub mod undo;

pub use finding::{Change, Finding, Severity};
pub use host::Host;
pub use settings::SETTINGS;

/// All findings on this host, of every setting, those that are as wanted among them.
pub fn check(host: &Host) -> Vec<Finding> {
    SETTINGS.iter().flat_map(|setting| setting.check(host)).collect()
}

#[cfg(test)]
impl test_tree::Tree {
    /// As the host of a node with two executors, which appends on core 0.
    pub fn host(&self) -> Host {
        Host::look(self.root(), std::path::Path::new(test_tree::DATA), 2, 0)
    }
}
