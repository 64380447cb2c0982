//! Is a port free? glommio always sets SO_REUSEPORT, so a second node of the same user would share it silently.

use std::fmt;
use std::io;
use std::net::SocketAddr;
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

/// Binds without SO_REUSEPORT and lets go again. Blocking; at start only.
///
/// # Errors
/// [`PortTaken`] if the address is still taken after a second, at once if it cannot be bound at all.
pub fn probe(addr: SocketAddr) -> Result<(), PortTaken> {
    let began = Instant::now();
    loop {
        match look(addr) {
            Err(taken) if taken.source.kind() == io::ErrorKind::AddrInUse && began.elapsed() < LINGER => {
                std::thread::sleep(LOOK_INTERVAL);
            }
            found => return found,
        }
    }
}

fn look(addr: SocketAddr) -> Result<(), PortTaken> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(1)
    };
    bind().map_err(|source| PortTaken { addr, source })
}
