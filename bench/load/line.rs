//! A connection that is made again when it is lost.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::epoll;

use super::clock::{self, MS};
use super::link::Link;

/// How long to wait before connecting again.
const AGAIN: u64 = 100 * MS;
/// How long connecting may take.
const CONNECT_MAX: u64 = 3000 * MS;

pub struct Line {
    address: SocketAddr,
    state: State,
    /// Number of this line among the events of `poll`.
    number: u64,
    /// Whether the kernel was asked to say when the socket takes more.
    watching_room: bool,
    /// Why it was lost the last time.
    pub last_error: Option<String>,
}

enum State {
    Down { again_at: u64 },
    Connecting { link: Link, since: u64 },
    Up(Link),
}

impl Line {
    pub fn new(address: SocketAddr, number: usize) -> Line {
        Line {
            address,
            state: State::Down { again_at: 0 },
            number: number as u64,
            watching_room: false,
            last_error: None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// It is up, and all that was written to it is on its way.
    #[inline]
    pub fn can_write(&self) -> bool {
        matches!(&self.state, State::Up(link) if link.outbox.is_empty())
    }

    pub fn link(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Up(link) => Some(link),
            _ => None,
        }
    }

    /// # Errors
    /// Of the socket; the line must then be given up by [`Line::lose`].
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.state {
            State::Up(link) => link.write(bytes),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub fn lose(&mut self, error: &io::Error) {
        self.last_error = Some(format!("{}: {error}", self.address));
        // Closing the socket takes it from the poll.
        self.state = State::Down { again_at: clock::now() + AGAIN };
        self.watching_room = false;
    }

    /// Begins to connect if it is time to.
    ///
    /// # Errors
    /// If the kernel has no more sockets or the like.
    pub fn tend(&mut self, poll: &OwnedFd, now: u64) -> io::Result<()> {
        match &self.state {
            State::Down { again_at } if now >= *again_at => match Link::begin(self.address) {
                Ok(link) => {
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
                    epoll::add(poll, &link, epoll::EventData::new_u64(self.number), flags)?;
                    self.watching_room = true;
                    self.state = State::Connecting { link, since: now };
                }
                Err(error) => self.lose(&error),
            },
            State::Connecting { since, .. } if now > since + CONNECT_MAX => {
                self.lose(&io::ErrorKind::TimedOut.into());
            }
            _ => {}
        }
        Ok(())
    }

    /// The poll says that something happened; true if the line has just come up.
    pub fn came_up(&mut self) -> bool {
        let State::Connecting { link, .. } = &self.state else { return false };
        if let Err(error) = link.connected() {
            self.lose(&error);
            return false;
        }
        let State::Connecting { link, .. } = std::mem::replace(&mut self.state, State::Down { again_at: 0 }) else {
            unreachable!("looked at above");
        };
        self.state = State::Up(link);
        true
    }

    /// Asks the kernel to say when there is room, if bytes wait for it, and not to, if none do.
    ///
    /// # Errors
    /// Of the poll; there is none for a socket that is open.
    #[inline]
    pub fn watch(&mut self, poll: &OwnedFd) -> io::Result<()> {
        let State::Up(link) = &self.state else { return Ok(()) };
        let wanted = !link.outbox.is_empty();
        if wanted != self.watching_room {
            let room = if wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            epoll::modify(poll, link, epoll::EventData::new_u64(self.number), epoll::EventFlags::IN | room)?;
            self.watching_room = wanted;
        }
        Ok(())
    }
}
