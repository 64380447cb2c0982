//! A small HTTP server for what other programs ask about the node: the metrics page, and whether it lives and is ready.
//!
//! One plain thread, on no executor: it must answer while the node recovers and has none yet, and when one of them hangs,
//! which is what is asked then. It waits in poll(2) and costs nothing while nobody asks. A connection carries one request
//! and is closed behind the answer.
//!
//! Bounded: so many connections ([`Limits`]; the oldest gives way to one more, so that silent ones shut nobody out), so
//! many bytes of a request, so much time for each.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of a request's head.
const HEAD_LEN_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
/// Connections accepted in a row before those that are there get a turn.
const ACCEPTS_A_TURN: usize = 16;
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What one listener lets in.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Time for a connection from its beginning to its end.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 16, time: Duration::from_secs(5) }
    }
}

/// What is shown at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// 200, else 503.
    pub is_fine: bool,
    pub content_type: &'static str,
    pub body: String,
}

/// The running server.
pub struct HttpServer {
    /// Closed to end it.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Serves `listener` on a thread of its own until [`HttpServer::stop`]. `prepare` runs there first. `answer` gives the
    /// page of a path, without its query, or nothing where there is none (404); it runs there too, and all connections
    /// wait for it.
    ///
    /// # Errors
    /// The system gives no thread or socket.
    pub fn start(
        name: &str,
        listener: TcpListener,
        limits: Limits,
        prepare: impl FnOnce() + Send + 'static,
        answer: impl FnMut(&str) -> Option<Page> + Send + 'static,
    ) -> io::Result<HttpServer> {
        let (stop, stopped) = UnixStream::pair()?;
        listener.set_nonblocking(true)?;
        let mut server = Server { listener, limits, answer, connections: Vec::new() };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            prepare();
            server.run(&stopped);
        })?;
        Ok(HttpServer { stop, thread })
    }

    /// Ends the thread and closes the port; who is being answered is cut off.
    pub fn stop(self) {
        drop(self.stop);
        // One that panicked has said so.
        let _ = self.thread.join();
    }
}

struct Server<A> {
    listener: TcpListener,
    limits: Limits,
    answer: A,
    /// Oldest first.
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    ends: Instant,
    state: State,
}

enum State {
    /// What has come of the request's head.
    Asking(Vec<u8>),
    /// The answer, and how much of it has left.
    Answering(Vec<u8>, usize),
    /// Everything has left. What the peer still sends is read and forgotten: closing on unread bytes would take the answer
    /// away from it.
    Leaving,
}

impl<A: FnMut(&str) -> Option<Page>> Server<A> {
    fn run(&mut self, stop: &UnixStream) {
        loop {
            let (is_stopped, is_asked, ready) = self.wait(stop);
            if is_stopped {
                return;
            }
            let now = Instant::now();
            let mut index = 0;
            for is_ready in ready {
                let connection = &mut self.connections[index];
                let goes_on = now < connection.ends && (!is_ready || connection.go_on(&mut self.answer));
                if goes_on {
                    index += 1;
                } else {
                    self.connections.remove(index);
                }
            }
            if is_asked {
                self.accept(now);
            }
        }
    }

    /// Waits until there is something to do: is it to stop, is there a new connection, which of those there are can go on?
    fn wait(&self, stop: &UnixStream) -> (bool, bool, Vec<bool>) {
        let mut watched = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(self.connections.iter().map(|connection| {
            let wanted = if matches!(connection.state, State::Answering(..)) { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.stream, wanted)
        }));
        let first_end = self.connections.iter().map(|connection| connection.ends).min();
        let left = first_end.map(|ends| ends.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Interrupted, or out of memory: nothing is ready then, and it is asked again.
        let _ = poll(&mut watched, timeout.as_ref());
        let is_ready = |watched: &PollFd<'_>| !watched.revents().is_empty();
        (is_ready(&watched[0]), is_ready(&watched[1]), watched[2..].iter().map(is_ready).collect())
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.connections.len() >= self.limits.connections {
                        self.connections.remove(0);
                    }
                    let ends = now + self.limits.time;
                    self.connections.push(Connection { stream, ends, state: State::Asking(Vec::new()) });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Mostly too many open files; errors return at once, and a loop on them would spin.
                Err(_) => return std::thread::sleep(ACCEPT_RETRY),
            }
        }
    }
}

impl Connection {
    /// Reads and writes as much as it can without waiting; false once it is over.
    fn go_on(&mut self, answer: &mut impl FnMut(&str) -> Option<Page>) -> bool {
        match self.try_go_on(answer) {
            Ok(goes_on) => goes_on,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn try_go_on(&mut self, answer: &mut impl FnMut(&str) -> Option<Page>) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            match &mut self.state {
                State::Asking(head) => {
                    let len = self.stream.read(&mut bytes)?;
                    if len == 0 {
                        return Ok(false);
                    }
                    head.extend_from_slice(&bytes[..len]);
                    if let Some(answered) = answered(head, answer) {
                        self.state = State::Answering(answered, 0);
                    }
                }
                State::Answering(out, at) => {
                    while *at < out.len() {
                        *at += self.stream.write(&out[*at..])?;
                    }
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Leaving;
                }
                State::Leaving => {
                    if self.stream.read(&mut bytes)? == 0 {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

/// The whole answer to the request that begins so; nothing until its head is whole.
fn answered(head: &[u8], answer: &mut impl FnMut(&str) -> Option<Page>) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) if head.len() < HEAD_LEN_MAX => return None,
        Ok(httparse::Status::Complete(len)) if len <= HEAD_LEN_MAX => {}
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Some(refused("431 Request Header Fields Too Large", ""));
        }
        Err(_) => return Some(refused("400 Bad Request", "")),
    }
    let is_head = request.method == Some("HEAD");
    if !is_head && request.method != Some("GET") {
        return Some(refused("405 Method Not Allowed", "Allow: GET, HEAD\r\n"));
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let Some(page) = answer(path) else { return Some(refused("404 Not Found", "")) };
    let status = if page.is_fine { "200 OK" } else { "503 Service Unavailable" };
    let mut out = response(status, "Cache-Control: no-store\r\n", page.content_type, page.body.len());
    if !is_head {
        out.extend_from_slice(page.body.as_bytes());
    }
    Some(out)
}

fn refused(status: &str, more: &str) -> Vec<u8> {
    let body = format!("{}\n", status.split_once(' ').map_or(status, |(_, reason)| reason));
    let mut out = response(status, more, "text/plain; charset=utf-8", body.len());
    out.extend_from_slice(body.as_bytes());
    out
}

fn response(status: &str, more: &str, content_type: &str, len: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n{more}Connection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn page(path: &str) -> Option<Page> {
        let body = match path {
            "/long" => "x".repeat(3 << 20),
            "/here" | "/not" => "a body\n".into(),
            _ => return None,
        };
        Some(Page { is_fine: path != "/not", content_type: "text/plain", body })
    }

    fn server(limits: Limits) -> (HttpServer, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        (HttpServer::start("http-test", listener, limits, || {}, page).unwrap(), addr)
    }

    fn connect(addr: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Everything that comes back until the server closes.
    fn rest(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn ask(addr: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = connect(addr);
        stream.write_all(bytes).unwrap();
        rest(&mut stream)
    }

    #[test]
    fn a_path_with_a_page_gets_it_and_one_without_does_not() {
        let (server, addr) = server(Limits::default());
        let answer = ask(addr, b"GET /here?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n"), "{answer}");
        assert!(answer.contains("\r\nConnection: close\r\n") && answer.ends_with("\r\n\r\na body\n"), "{answer}");
        let answer = ask(addr, b"GET /not HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && answer.ends_with("\r\n\r\na body\n"));
        let answer = ask(addr, b"HEAD /here HTTP/1.1\r\n\r\n");
        assert!(answer.contains("Content-Length: 7\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(ask(addr, b"GET /elsewhere HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
        server.stop();
        assert!(TcpStream::connect(addr).is_err(), "the port is closed");
    }

    #[test]
    fn what_is_no_request_is_told_so() {
        let (server, addr) = server(Limits::default());
        for (bytes, status) in [
            (&b"POST /here HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"[..], "405 "),
            (b"\x00\x00\x01\x02 no http\r\n\r\n", "400 "),
            (b"GET /here HTTP/9.9\r\n\r\n", "400 "),
            (b"GET /he\x01re HTTP/1.1\r\n\r\n", "400 "),
        ] {
            let answer = ask(addr, bytes);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
        let long = [b"GET /here HTTP/1.1\r\nX: ", &b"y".repeat(HEAD_LEN_MAX)[..]].concat();
        assert!(ask(addr, &long).starts_with("HTTP/1.1 431 "));
        let many = [b"GET /here HTTP/1.1\r\n", &b"X: y\r\n".repeat(HEADERS_MAX + 1)[..], b"\r\n"].concat();
        assert!(ask(addr, &many).starts_with("HTTP/1.1 431 "));
        server.stop();
    }

    #[test]
    fn a_request_may_come_in_pieces_and_a_long_answer_leaves_as_the_peer_takes_it() {
        let (server, addr) = server(Limits { time: Duration::from_secs(60), ..Limits::default() });
        let mut stream = connect(addr);
        for piece in [&b"GET /lo"[..], b"ng HTTP/1.1\r\nHo", b"st: a\r\n\r", b"\n"] {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        // While it takes nothing, others are served.
        std::thread::sleep(Duration::from_millis(50));
        assert!(ask(addr, b"GET /here HTTP/1.1\r\n\r\n").ends_with("a body\n"));
        assert_eq!(rest(&mut stream).split_once("\r\n\r\n").unwrap().1.len(), 3 << 20);
        server.stop();
    }

    #[test]
    fn silent_peers_shut_nobody_out_and_are_closed_in_time() {
        let limits = Limits { connections: 4, time: Duration::from_millis(300) };
        let (server, addr) = server(limits);
        let mut silent: Vec<_> = (0..4).map(|_| connect(addr)).collect();
        // They are there before it comes.
        std::thread::sleep(Duration::from_millis(50));
        assert!(ask(addr, b"GET /here HTTP/1.1\r\n\r\n").ends_with("a body\n"));
        for stream in &mut silent {
            stream.write_all(b"GET /he").ok();
            assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        }
        server.stop();
    }
}
