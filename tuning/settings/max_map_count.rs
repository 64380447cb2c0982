//! Mappings that a process may have.

use std::io;
use std::path::Path;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "max_map_count",
    reason: "every log segment, consume queue file and index file is mapped; without a mapping left, queues get no new file and \
             the node does not start again",
    look,
};
const PATH: &str = "/proc/sys/vm/max_map_count";
/// For rings, stacks, heaps and libraries.
const BESIDE_FILES: u64 = 4096;
const LEAST_NEW: u64 = 262_144;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(found) = host.number(PATH)? else { return Ok(SETTING.absent("not to be seen here")) };
    let files = files(host, host.data())?;
    // The writer maps a segment beside the readers, and the store grows.
    let needed = 2 * files + BESIDE_FILES;
    let finding = SETTING.fine("", found, format!("at least {needed} for the {files} files of this store"));
    if found >= needed {
        return Ok(vec![finding]);
    }
    let new = needed.next_power_of_two().max(LEAST_NEW);
    Ok(vec![finding.with_changes(Severity::Warning, vec![Change::new(PATH, found.to_string(), new.to_string())])])
}

/// Files of the store that are mapped.
fn files(host: &Host, data: &Path) -> io::Result<u64> {
    let mut files = host.entry_count(&data.join("commitlog"))? + host.entry_count(&data.join("index"))?;
    let topics = data.join("consumequeue");
    for topic in host.names(&topics)? {
        let topic = topics.join(topic);
        for queue in host.names(&topic)? {
            files += host.entry_count(&topic.join(queue))?;
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::{DATA, Tree};

    #[test]
    fn it_must_have_room_for_twice_the_files_of_the_store() {
        let tree = Tree::new();
        tree.put(PATH, "4120");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine, "no store yet");
        for (dir, count) in [("commitlog", 3), ("index", 1), ("consumequeue/T/0", 2), ("consumequeue/T/11", 6)] {
            for number in 0..count {
                tree.put(&format!("{DATA}/{dir}/{number:020}"), "");
            }
        }
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine, "4096 and twice 12");
        tree.put(PATH, "4119");
        let finding = SETTING.check(&tree.host()).remove(0);
        assert_eq!((finding.severity, &*finding.fix), (Severity::Warning, "sysctl -w vm.max_map_count=262144"));
        assert!(finding.wanted.contains("12 files"), "{}", finding.wanted);
    }
}
