//! Is a port free? Every shard listens with SO_REUSEPORT, so a second node of the same user would share it silently.
//!
//! A probe without that option finds a node that listens; one that starts at the same time is found by the name that
//! each claims before it probes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct PortTaken {
    pub addr: SocketAddr,
    pub source: io::Error,
}

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.addr, self.source)
    }
}

impl std::error::Error for PortTaken {}

/// A listener of a process that was just killed is let go by the kernel a little after the process itself.
const LINGER: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A port that no other node of this host takes while this lives.
#[derive(Debug)]
pub struct PortClaim {
    /// None where a sandbox forbids such sockets: then the probe alone stands between two nodes.
    _name: Option<UnixListener>,
}

/// Claims the address among nodes, and binds it without SO_REUSEPORT and lets go again, which finds anybody else.
/// Blocking; at start only.
///
/// # Errors
/// [`PortTaken`] if the address is still taken after a second, at once if it cannot be bound at all.
pub fn claim(addr: SocketAddr) -> Result<PortClaim, PortTaken> {
    let began = Instant::now();
    loop {
        match name(addr).and_then(|claim| look(addr).map(|()| claim)) {
            Err(source) if source.kind() == io::ErrorKind::AddrInUse && began.elapsed() < LINGER => {
                std::thread::sleep(LOOK_INTERVAL);
            }
            found => return found.map_err(|source| PortTaken { addr, source }),
        }
    }
}

/// Binds a name for the address in the abstract socket namespace, which goes with the network namespace. The name ends
/// with the process, however that ends.
fn name(addr: SocketAddr) -> io::Result<PortClaim> {
    let name = unix::SocketAddr::from_abstract_name(format!("kerolox/{addr}"))?;
    match UnixListener::bind_addr(&name) {
        Err(taken) if taken.kind() == io::ErrorKind::AddrInUse => Err(taken),
        bound => Ok(PortClaim { _name: bound.ok() }),
    }
}

fn look(addr: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1)
}
