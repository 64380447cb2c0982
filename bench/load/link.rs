//! One connection of a load: a socket that never blocks, what was read of it and what is still to be written.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use kerolox::wire::{FrameBounds, FrameError, expected_len, first_frame};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// What an inbox has room for at first, and at least before each read.
const INBOX_LEN: usize = 64 << 10;
const READ_LEN_MIN: usize = 16 << 10;

/// Bytes that were read and not yet used. It grows to hold the frame that is coming in, whose length is checked first.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Reads once. Gives how many bytes came; 0: the peer is done.
    pub fn fill(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.is_empty() {
            self.bytes.resize(INBOX_LEN, 0);
        }
        let unread = self.end - self.start;
        // A frame that is no frame is found when it is cut.
        let frame_len = expected_len(&self.bytes[self.start..self.end]).ok().flatten().unwrap_or(0);
        let needed = frame_len.max(unread + READ_LEN_MIN);
        if self.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
            if needed > self.bytes.len() {
                self.bytes.resize(needed.next_multiple_of(INBOX_LEN), 0);
            }
        }
        let len = socket.read(&mut self.bytes[self.end..])?;
        self.end += len;
        Ok(len)
    }

    /// The first frame, if all of it is there; [`Inbox::consume`] it afterwards.
    ///
    /// # Errors
    /// [`FrameError`] if the peer does not speak the protocol.
    #[inline]
    pub fn frame(&self) -> Result<Option<(FrameBounds, &[u8])>, FrameError> {
        let unread = &self.bytes[self.start..self.end];
        let Some(bounds) = first_frame(unread)? else { return Ok(None) };
        let frame = &unread[..bounds.total_len];
        Ok(Some((bounds, frame)))
    }

    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.start += len;
    }
}

/// Bytes that the socket would not take yet.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.waiting().len()
    }

    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes as much as the socket takes.
    pub fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while !self.is_empty() {
            match socket.write(self.waiting()) {
                Ok(len) => self.start += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }
}

/// See the module.
pub struct Link {
    socket: TcpStream,
    pub inbox: Inbox,
    pub outbox: Outbox,
}

impl Link {
    /// Begins to connect; the socket is writable once that is done, well or badly: see [`Link::connected`].
    pub fn begin(address: SocketAddr) -> io::Result<Link> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(Link { socket: socket.into(), inbox: Inbox::default(), outbox: Outbox::default() })
    }

    /// What became of the connecting.
    pub fn connected(&self) -> io::Result<()> {
        match self.socket.take_error()? {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Writes what the socket takes at once and keeps the rest.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        if self.outbox.is_empty() {
            done = match (&self.socket).write(bytes) {
                Ok(len) => len,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(error) => return Err(error),
            };
        }
        if done < bytes.len() {
            self.outbox.push(&bytes[done..]);
        }
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.outbox.flush(&self.socket)
    }

    /// Reads once; gives how many bytes came, `None` if there are none now.
    pub fn read(&mut self) -> io::Result<Option<usize>> {
        match self.inbox.fill(&self.socket) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(Some(len)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
