//! The page cache, emptied of a store's files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Takes every file of the store out of the page cache.
pub fn drop_caches(root: &Path) {
    for path in files_below(root) {
        let file = File::open(&path).expect("a file of the store");
        file.sync_all().expect("it reaches the disk");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("the kernel is told");
    }
}

pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder of the store") {
        let path = entry.expect("its entries").path();
        if path.is_dir() {
            files.append(&mut files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}
