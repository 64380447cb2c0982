//! The regions of the log that a recovery has set aside: `kerolox/quarantine/list.json` (rules R2, R4 and R5).

use serde::{Deserialize, Serialize};

use crate::io::read_if_present;
use crate::store::layout::Layout;
use crate::store::open_error::{OpenError, io_at};

/// A region as the list has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    pub phy: u64,
    pub len: u64,
    #[serde(default)]
    pub why: String,
    /// "damaged": still in the log, stepped over; "cut": a tail that became zeros.
    #[serde(default)]
    pub kind: String,
    /// Name of the copy beside the list.
    #[serde(default)]
    pub copy: String,
    #[serde(default)]
    pub at: i64,
}

impl Region {
    pub fn is_damaged(&self) -> bool {
        self.kind == "damaged"
    }

    pub fn end(&self) -> u64 {
        self.phy.saturating_add(self.len)
    }
}

/// What the list says, in order; nothing if there is none.
///
/// # Errors
/// It cannot be read, or is no such list.
pub fn list(layout: &Layout) -> Result<Vec<Region>, OpenError> {
    let path = layout.quarantine().join("list.json");
    let Some(bytes) = read_if_present(&path).map_err(io_at(&path))? else { return Ok(Vec::new()) };
    let mut regions: Vec<Region> = serde_json::from_slice(&bytes)
        .map_err(|error| OpenError::Config { path, why: format!("no list of regions ({error})") })?;
    regions.sort_by_key(|region| region.phy);
    Ok(regions)
}
