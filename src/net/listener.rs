//! Accepting connections: every shard listens on the same ports, and the kernel spreads clients over them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::time::Duration;

use glommio::net::TcpListener;
use socket2::{Domain, Socket, Type};

use super::Service;
use super::connection::Connection;
use super::hub::Hub;

/// Connections that the kernel may keep until they are accepted (remoting.md 1.7).
pub const BACKLOG_LEN: i32 = 1024;
/// Pause after a failed accept: errors return at once, and a loop on them would spin the core.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A trouble that comes back within so many ms is the same one, and not told again: at a bound, one leaves and one comes.
const QUIET_MS: u64 = 10_000;
/// Connections accepted in a row before other tasks get a turn.
const ACCEPTS_A_TURN: u32 = 16;

/// Binds and listens on one shard. Call [`super::claim`] first: this succeeds beside any other node of the same user.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
    // Connections of a broker that was here before may lie in TIME_WAIT: those of a Java broker, which shares no ports, would
    // keep this one from starting for a minute. And for our own connections, which inherit it, refused ones too: while one
    // of them lies there, the probe of the next start can bind all the same. Against a listener it helps nobody.
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG_LEN)?;
    // SAFETY: the descriptor is an open listening socket, and nobody else owns it.
    Ok(unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) })
}

/// Accepts until the task is dropped. Each connection is a task of its own.
pub async fn serve(listener: TcpListener, hub: Rc<Hub>, service: Rc<dyn Service>) {
    let (mut failing, mut refusing) = (Trouble::default(), Trouble::default());
    let mut accepts = 0;
    loop {
        match listener.accept().await {
            Ok(stream) => match hub.limits.enter(stream.as_raw_fd()) {
                Ok(()) => match Connection::open(stream, Rc::clone(&hub)) {
                    Ok(connection) => drop(glommio::spawn_local(connection.run(Rc::clone(&service))).detach()),
                    // The peer was gone before it was greeted.
                    Err(_) => hub.limits.leave(),
                },
                Err(why) if refusing.begins(crate::io::steady_ms()) => {
                    tracing::warn!(why, "connections are refused");
                }
                Err(_) => {}
            },
            Err(error) => {
                if failing.begins(crate::io::steady_ms()) {
                    tracing::warn!(%error, "accepting connections fails; raise the limit of open files if it says so");
                }
                crate::io::sleep(ACCEPT_RETRY).await;
            }
        }
        accepts += 1;
        if accepts == ACCEPTS_A_TURN {
            accepts = 0;
            super::pause().await;
        }
    }
}

/// What is logged when it begins, not once a connection.
#[derive(Debug, Default)]
struct Trouble {
    /// Steady ms.
    last: Option<u64>,
}

impl Trouble {
    /// Notes that it is so now, and tells whether that is new.
    fn begins(&mut self, now_ms: u64) -> bool {
        self.last.replace(now_ms).is_none_or(|last| now_ms.saturating_sub(last) > QUIET_MS)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net;

    use super::*;
    use crate::io::test_executor::on_executor;

    #[test]
    fn a_trouble_is_told_when_it_begins_and_again_after_a_quiet_time() {
        let mut trouble = Trouble::default();
        let told = [0, 1, 9_000, 18_000, 28_000, 38_001, 38_002].map(|now_ms| trouble.begins(now_ms));
        assert_eq!(told, [true, false, false, false, false, true, false]);
    }

    #[test]
    fn a_port_on_which_another_brokers_connections_linger_is_free_and_a_taken_one_is_not() {
        // As Java's does: SO_REUSEADDR, no SO_REUSEPORT, and the server closes first.
        let before = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = before.local_addr().unwrap();
        let mut client = net::TcpStream::connect(addr).unwrap();
        let (taken, lingering) = on_executor(async move {
            drop(before.accept().unwrap());
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            drop(client);
            let taken = listen(addr).map(drop);
            drop(before);
            (taken, listen(addr).map(drop))
        });
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        lingering.unwrap();
    }
}
