//! One connection: bytes in, frames to the service; answers gathered, bytes out.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

use super::hub::{Hub, Member, Stall, WriteState};
use super::{Room, Service};
use crate::store::LocalWake;
use crate::wire::{ConnId, Peer, expected_len, first_frame};

/// Bytes read at a time into a buffer that all connections of a core share.
const READ_LEN: usize = 128 * 1024;
/// Above this many unsent bytes a connection is not read from.
const UNSENT_LEN_SOFT: usize = 1 << 20;
/// Above this many it is closed: answers to requests that were read before, to a peer that does not take them.
const UNSENT_LEN_HARD: usize = 32 << 20;
/// Buffers longer than this are given back when they are empty.
const KEPT_BUFFER_LEN: usize = 256 * 1024;
/// While too many bytes of unfinished frames are held, connections with more than this are not read from.
const UNFINISHED_LEN_FREE: usize = 64 * 1024;
/// How often they look whether there is room again.
const UNFINISHED_RETRY: Duration = Duration::from_millis(10);
/// Frames of one read that count as arrived at the same moment.
const FRAMES_A_CLOCK: usize = 8;
/// How often a connection looks whether the service has room again.
const ROOM_RETRY: Duration = Duration::from_millis(1);

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_LEN]);
}

/// Lives on its shard's core.
pub struct Connection {
    me: Weak<Connection>,
    id: ConnId,
    hub: Rc<Hub>,
    remote: SocketAddr,
    fd: RawFd,
    stream: RefCell<TcpStream>,
    out: RefCell<BytesMut>,
    open: Cell<bool>,
    dirty: Cell<bool>,
    blocked: Cell<bool>,
    drained: LocalWake,
    frame_begun: Cell<bool>,
    /// The service has no room for more of this connection's frames.
    full: Cell<bool>,
    read_ms: Cell<u64>,
    written_ms: Cell<u64>,
}

impl Connection {
    /// Takes over an accepted socket.
    pub(super) fn open(stream: TcpStream, hub: Rc<Hub>) -> io::Result<Rc<Connection>> {
        stream.set_nodelay(true)?;
        let remote = stream.peer_addr()?;
        let id = hub.next_id();
        let now = crate::io::steady_ms();
        let connection = Rc::new_cyclic(|me| Connection {
            me: me.clone(),
            id,
            remote,
            fd: stream.as_raw_fd(),
            stream: RefCell::new(stream),
            out: RefCell::default(),
            open: Cell::new(true),
            dirty: Cell::new(false),
            blocked: Cell::new(false),
            drained: LocalWake::default(),
            frame_begun: Cell::new(false),
            full: Cell::new(false),
            read_ms: Cell::new(now),
            written_ms: Cell::new(now),
            hub,
        });
        connection.hub.add(id, Rc::clone(&connection) as Rc<dyn Member>);
        Ok(connection)
    }

    pub fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Reads and serves frames until the peer or an error ends it.
    pub(super) async fn run(self: Rc<Self>, service: Rc<dyn Service>) {
        let mut unfinished = BytesMut::new();
        while self.open.get() {
            let read = poll_fn(|cx| {
                READ_BUFFER.with_borrow_mut(|buffer| Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buffer))
            })
            .await;
            let len = match read {
                Ok(0) | Err(_) => break,
                Ok(len) => len,
            };
            self.read_ms.set(crate::io::steady_ms());
            let before = unfinished.len();
            let served = READ_BUFFER.with_borrow(|buffer| {
                if unfinished.is_empty() {
                    let used = self.serve(&buffer[..len], &*service)?;
                    keep(&mut unfinished, &buffer[used..len]);
                } else {
                    keep(&mut unfinished, &buffer[..len]);
                    let used = self.serve(&unfinished, &*service)?;
                    unfinished.advance(used);
                }
                Ok::<(), crate::wire::FrameError>(())
            });
            if let Err(error) = served {
                tracing::debug!(remote = %self.remote, %error, "connection closed on bytes that are no frame");
                break;
            }
            self.count_unfinished(before, unfinished.len());
            if unfinished.is_empty() && unfinished.capacity() > KEPT_BUFFER_LEN {
                unfinished = BytesMut::new();
            }
            // Frames that were read but not served because too many answers wait, or the service has no room: go on as
            // those leave and this comes.
            while self.open.get() && (self.unsent() > UNSENT_LEN_SOFT || self.full.get()) {
                // It is not the peer's next byte that is waited for.
                self.frame_begun.set(false);
                if self.full.get() {
                    crate::io::sleep(ROOM_RETRY).await;
                    self.full.set(!service.has_room());
                } else {
                    self.drained.wait().await;
                }
                let before = unfinished.len();
                match self.serve(&unfinished, &*service) {
                    Ok(used) => unfinished.advance(used),
                    Err(_) => self.close(),
                }
                self.count_unfinished(before, unfinished.len());
            }
            if unfinished.len() > UNFINISHED_LEN_FREE {
                while self.open.get() && self.hub.limits.is_over() && !self.hub.may_pass(self.id) {
                    self.frame_begun.set(false);
                    crate::io::sleep(UNFINISHED_RETRY).await;
                }
            } else {
                self.hub.has_passed(self.id);
            }
            if !unfinished.is_empty() && !self.frame_begun.replace(true) {
                self.read_ms.set(crate::io::steady_ms());
            }
            // A peer that always has more must not keep the core to itself.
            if len == READ_LEN {
                super::pause().await;
            }
        }
        self.count_unfinished(unfinished.len(), 0);
        self.hub.has_passed(self.id);
        self.close();
        self.hub.remove(self.id);
        service.closed(&self);
    }

    /// Serves the whole frames at the start of `bytes`, as long as the peer takes its answers. Returns how much was used.
    fn serve(self: &Rc<Self>, bytes: &[u8], service: &dyn Service) -> Result<usize, crate::wire::FrameError> {
        let (mut used, mut count) = (0, 0_usize);
        while self.unsent() <= UNSENT_LEN_SOFT
            && !self.full.get()
            && self.open.get()
            && let Some(bounds) = first_frame(&bytes[used..])?
        {
            if count.is_multiple_of(FRAMES_A_CLOCK) {
                service.arriving();
            }
            count += 1;
            let frame = &bytes[used..used + bounds.total_len];
            self.full.set(service.frame(self, frame, &bounds) == Room::Full);
            used += bounds.total_len;
        }
        Ok(used)
    }

    fn count_unfinished(&self, before: usize, now: usize) {
        self.frame_begun.set(now > 0);
        if now > before {
            self.hub.limits.add((now - before) as u64);
        } else {
            self.hub.limits.sub((before - now) as u64);
        }
    }
}

/// Keeps the bytes of a frame that is not whole yet, with room for all of it once its length is known.
fn keep(unfinished: &mut BytesMut, bytes: &[u8]) {
    unfinished.extend_from_slice(bytes);
    if let Ok(Some(len)) = expected_len(unfinished) {
        // Checked against the frame limit; grown in steps, so that a length alone costs no memory.
        let step = len.min(unfinished.len() * 2).max(unfinished.len());
        unfinished.reserve(step - unfinished.len());
    }
}

impl Member for Connection {
    fn close(&self) {
        if self.open.replace(false) {
            // SAFETY: the descriptor belongs to `stream`, which lives as long as `self`.
            unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
            self.drained.wake();
        }
    }

    fn unsent(&self) -> usize {
        self.out.borrow().len()
    }

    fn stall(&self) -> Stall {
        Stall {
            active_ms: self.read_ms.get().max(self.written_ms.get()),
            read_ms: self.read_ms.get(),
            written_ms: self.written_ms.get(),
            frame_begun: self.frame_begun.get(),
            unsent: self.unsent() > 0,
        }
    }

    fn write_now(&self) -> WriteState {
        self.dirty.set(false);
        if self.blocked.get() || !self.open.get() {
            return WriteState::Done;
        }
        let mut out = self.out.borrow_mut();
        while !out.is_empty() {
            // SAFETY: the descriptor belongs to `stream`, which lives as long as `self`; the buffer is live.
            let sent =
                unsafe { libc::send(self.fd, out.as_ptr().cast(), out.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            if sent < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => return WriteState::Blocked,
                    _ => {
                        out.clear();
                        drop(out);
                        self.close();
                        return WriteState::Done;
                    }
                }
            }
            out.advance(sent as usize);
            self.written_ms.set(crate::io::steady_ms());
        }
        if out.capacity() > KEPT_BUFFER_LEN {
            *out = BytesMut::new()
        } else {
            out.clear()
        }
        drop(out);
        // The reader may wait for this: answers of more than the soft limit can leave in one write.
        self.drained.wake();
        WriteState::Done
    }

    fn start_blocked_writer(self: Rc<Self>) {
        if self.blocked.replace(true) {
            return;
        }
        // What waits, waits from now on.
        self.written_ms.set(crate::io::steady_ms());
        glommio::spawn_local(async move {
            while self.open.get() && self.unsent() > 0 {
                let sent = poll_fn(|cx| {
                    let out = self.out.borrow();
                    Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, &out)
                })
                .await;
                match sent {
                    Ok(len) if len > 0 => {
                        self.out.borrow_mut().advance(len);
                        self.written_ms.set(crate::io::steady_ms());
                        if self.unsent() <= UNSENT_LEN_SOFT {
                            self.drained.wake();
                        }
                    }
                    _ => self.close(),
                }
            }
            self.blocked.set(false);
            *self.out.borrow_mut() = BytesMut::new();
            self.drained.wake();
        })
        .detach();
    }
}

impl Peer for Connection {
    fn id(&self) -> ConnId {
        self.id
    }

    fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn send(&self, fill: &mut dyn FnMut(&mut BytesMut)) {
        if !self.open.get() {
            return;
        }
        let len = {
            let mut out = self.out.borrow_mut();
            fill(&mut out);
            out.len()
        };
        if len > UNSENT_LEN_HARD {
            tracing::warn!(remote = %self.remote, unsent = len, "connection closed: it takes none of its answers");
            self.close();
            return;
        }
        if !self.dirty.replace(true)
            && let Some(me) = self.me.upgrade()
        {
            self.hub.mark_dirty(me);
        }
    }

    fn is_open(&self) -> bool {
        self.open.get()
    }
}
