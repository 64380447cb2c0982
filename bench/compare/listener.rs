//! Which process of this host listens on an address, so that its processor time and memory can be measured.

use std::fs;
use std::net::ToSocketAddrs;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The process that listens on `address`, if that is on the loopback and we may look into it. One of them, if several do.
pub fn process_at(address: &str) -> Option<u32> {
    let address = address.to_socket_addrs().ok()?.find(|address| address.ip().is_loopback())?;
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let sockets: Vec<String> = tables.iter().flat_map(|table| listening(table, address.port())).collect();
    let links: Vec<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("fd")))
    });
    let holds = |link: &str| links.iter().any(|found| found == link);
    let mut holders = processes.filter(|(_, fds)| {
        let fds = fs::read_dir(fds).into_iter().flatten().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|link| link.to_str().is_some_and(holds))
    });
    holders.next().map(|(process, _)| process)
}

/// The inodes of sockets that listen on a port. Source: proc(5), /proc/net/tcp: `sl local remote st … inode`.
fn listening(table: &str, port: u16) -> Vec<String> {
    let of_port = format!(":{port:04X}");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let matches = fields.get(1)?.ends_with(&of_port) && *fields.get(3)? == LISTENING;
        matches.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    table.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(process_at(&address), Some(std::process::id()));
        drop(listener);
        assert_eq!(process_at(&address), None);
        assert_eq!(process_at("192.0.2.1:1"), None);
        assert_eq!(process_at("no address"), None);
    }

    #[test]
    fn connected_sockets_of_the_port_do_not_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2A9F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0
   1: 0100007F:2A9F 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0
   2: 0100007F:02A9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0
   3: short";
        assert_eq!(listening(table, 0x2A9F), ["111"]);
    }
}
