//! Accepting connections: every shard listens on the same ports, and the kernel spreads clients over them.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use glommio::net::TcpListener;

use super::Service;
use super::connection::Connection;
use super::hub::Hub;

/// Pause after a failed accept: errors return at once, and a loop on them would spin the core.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Binds and listens on one shard. Call [`super::probe`] first: this succeeds beside any other node of the same user.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(addr).map_err(io::Error::from)
}

/// Accepts until the task is dropped. Each connection is a task of its own.
pub async fn serve(listener: TcpListener, hub: Rc<Hub>, service: Rc<dyn Service>) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                failing = false;
                if !hub.limits.enter() {
                    tracing::warn!("connection refused: there are net.max_connections of them");
                    continue;
                }
                match Connection::open(stream, Rc::clone(&hub)) {
                    Ok(connection) => {
                        glommio::spawn_local(connection.run(Rc::clone(&service))).detach();
                    }
                    // The peer was gone before it was greeted.
                    Err(_) => hub.limits.leave(),
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "accepting connections fails; raise the limit of open files if it says so");
                }
                crate::io::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
