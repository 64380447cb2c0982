//! A small HTTP server for what other programs ask about the node: the metrics page, and whether it lives and is ready.
//!
//! Plain threads, on no executor: they must answer while the node recovers and has none yet, and when one of them hangs,
//! which is what is asked then. They wait, and cost nothing while nobody asks. A connection carries one request
//! and is closed behind the answer.
//!
//! Bounded: so many connections ([`Limits`]; to one more gives way the oldest that is silent or has hung up, so that these
//! shut nobody out), so many bytes of a request, so much time for each.
//!
//! Some pages wait for an executor. Those that must not wait for them are made on the thread of the sockets, all others one at
//! a time on a second one; who asks for one of these meanwhile waits among the connections.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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
/// Reads of what is forgotten, of one connection in a row.
const FORGETS_A_TURN: usize = 16;

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
    /// Serves `listener` on two threads of its own until [`HttpServer::stop`]. `prepare` runs on each first. `answer` gives
    /// the page of a path, without its query, or nothing where there is none (404). For the paths in `first` it runs on the
    /// thread of the sockets and must not wait; for all others on the second, where one waits for the other.
    ///
    /// # Errors
    /// The system gives no thread or socket.
    pub fn start(
        name: &str,
        listener: TcpListener,
        limits: Limits,
        first: &'static [&'static str],
        prepare: impl Fn() + Clone + Send + 'static,
        answer: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) -> io::Result<HttpServer> {
        let (stop, stopped) = UnixStream::pair()?;
        listener.set_nonblocking(true)?;
        let answer = Arc::new(answer);
        let maker = Maker::start(name, prepare.clone(), Arc::clone(&answer))?;
        let mut server = Server { listener, limits, first, answer, maker, connections: Vec::new() };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            prepare();
            server.run(&stopped);
            server.maker.stop();
        })?;
        Ok(HttpServer { stop, thread })
    }

    /// Ends the threads and closes the port; who is being answered is cut off. Waits for the page that is being made.
    pub fn stop(self) {
        drop(self.stop);
        // One that panicked has said so.
        let _ = self.thread.join();
    }
}

struct Server<A> {
    listener: TcpListener,
    limits: Limits,
    first: &'static [&'static str],
    answer: Arc<A>,
    maker: Maker,
    /// Oldest first.
    connections: Vec<Connection>,
}

/// Makes pages that may take their time, one at a time, on a thread of its own.
struct Maker {
    /// Dropped to end the thread.
    asked: SyncSender<String>,
    made: Receiver<Option<Page>>,
    /// A byte comes with each page; closed once the thread has ended.
    bell: UnixStream,
    is_busy: bool,
    thread: JoinHandle<()>,
}

impl Maker {
    fn start(
        name: &str,
        prepare: impl FnOnce() + Send + 'static,
        answer: Arc<impl Fn(&str) -> Option<Page> + Send + Sync + 'static>,
    ) -> io::Result<Maker> {
        let (bell, mut ring) = UnixStream::pair()?;
        // One of each: nothing is asked before the page before has been taken.
        let (asked, paths) = sync_channel::<String>(1);
        let (done, made) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("{name}-2")).spawn(move || {
            prepare();
            for path in paths {
                // The server has ended, if nobody is there to take it.
                if done.send(answer(&path)).is_err() || ring.write_all(&[0]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Maker { asked, made, bell, is_busy: false, thread })
    }

    fn ask(&mut self, path: &str) {
        // Where the thread has ended the bell says so.
        self.is_busy = self.asked.send(path.to_owned()).is_ok();
    }

    /// The page for which the bell rang. An error: the thread has panicked, and has said so.
    fn take(&mut self) -> io::Result<Option<Page>> {
        self.bell.read_exact(&mut [0])?;
        self.is_busy = false;
        self.made.recv().map_err(io::Error::other)
    }

    fn stop(self) {
        let Maker { asked, made, bell, is_busy: _, thread } = self;
        drop((asked, made, bell));
        let _ = thread.join();
    }
}

struct Connection {
    stream: TcpStream,
    ends: Instant,
    state: State,
}

enum State {
    /// What has come of the request's head.
    Asking(Vec<u8>),
    /// What is to be answered.
    Asked(Request),
    /// The page that is being made is for this one.
    Making(Request),
    /// The answer, and how much of it has left.
    Answering(Vec<u8>, usize),
    /// Everything has left. What the peer still sends is read and forgotten: closing on unread bytes would take the answer
    /// away from it.
    Leaving,
}

/// A request for a page.
#[derive(Debug)]
struct Request {
    /// Without its query.
    path: String,
    /// The body is not wanted.
    is_head: bool,
}

impl<A: Fn(&str) -> Option<Page>> Server<A> {
    fn run(&mut self, stop: &UnixStream) {
        loop {
            let (is_stopped, is_asked, is_made, ready) = self.wait(stop);
            if is_stopped {
                return;
            }
            let now = Instant::now();
            let mut index = 0;
            for is_ready in ready {
                let connection = &mut self.connections[index];
                // Of one that waits for its page, nothing is heard but that it is gone.
                let waits = matches!(connection.state, State::Asked(_) | State::Making(_));
                if now < connection.ends && (!is_ready || !waits && connection.go_on()) {
                    index += 1;
                } else {
                    self.connections.remove(index);
                }
            }
            if is_asked {
                self.accept(now);
            }
            if is_made && self.hand_out().is_err() {
                return;
            }
            self.answer_some();
        }
    }

    /// Gives the page that has been made to whom it is for, if that one is still there.
    fn hand_out(&mut self) -> io::Result<()> {
        let page = self.maker.take()?;
        let is_for = |connection: &Connection| matches!(connection.state, State::Making(_));
        if let Some(index) = self.connections.iter().position(is_for) {
            self.give(index, page);
        }
        Ok(())
    }

    /// Answers whoever asks for what comes first, and has the oldest of the others' pages made unless one is.
    fn answer_some(&mut self) {
        let first = self.first;
        while let Some(index) = self.oldest(|path| first.contains(&path)) {
            if let State::Asked(request) = &self.connections[index].state {
                let page = (self.answer)(&request.path);
                self.give(index, page);
            }
        }
        if self.maker.is_busy {
            return;
        }
        if let Some(index) = self.oldest(|_| true) {
            let state = &mut self.connections[index].state;
            if let State::Asked(request) = std::mem::replace(state, State::Leaving) {
                self.maker.ask(&request.path);
                *state = State::Making(request);
            }
        }
    }

    /// The oldest request for such a path.
    fn oldest(&self, is_meant: impl Fn(&str) -> bool) -> Option<usize> {
        let is_next =
            |connection: &Connection| matches!(&connection.state, State::Asked(request) if is_meant(&request.path));
        self.connections.iter().position(is_next)
    }

    /// Begins to answer a request with this page.
    fn give(&mut self, index: usize, page: Option<Page>) {
        let connection = &mut self.connections[index];
        if let State::Asked(request) | State::Making(request) = &connection.state {
            connection.state = State::Answering(answered(request, page), 0);
        }
        if !connection.go_on() {
            self.connections.remove(index);
        }
    }

    /// Waits until there is something to do: is it to stop, is there a new connection, has a page been made, which of the
    /// connections there are can go on?
    fn wait(&self, stop: &UnixStream) -> (bool, bool, bool, Vec<bool>) {
        let mut watched = vec![
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.maker.bell, PollFlags::IN),
        ];
        watched.extend(self.connections.iter().map(|connection| {
            let wanted = match connection.state {
                State::Answering(..) => PollFlags::OUT,
                State::Asking(_) | State::Leaving => PollFlags::IN,
                State::Asked(_) | State::Making(_) => PollFlags::empty(),
            };
            PollFd::new(&connection.stream, wanted)
        }));
        let first_end = self.connections.iter().map(|connection| connection.ends).min();
        let left = first_end.map(|ends| ends.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Interrupted, or out of memory: nothing is ready then, and it is asked again.
        let _ = poll(&mut watched, timeout.as_ref());
        let is_ready = |watched: &PollFd<'_>| !watched.revents().is_empty();
        (
            is_ready(&watched[0]),
            is_ready(&watched[1]),
            is_ready(&watched[2]),
            watched[3..].iter().map(is_ready).collect(),
        )
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let ends = now + self.limits.time;
                    let mut connection = Connection { stream, ends, state: State::Asking(Vec::new()) };
                    // Mostly its request is here already.
                    if !connection.go_on() {
                        continue;
                    }
                    if self.connections.len() >= self.limits.connections {
                        self.make_room();
                    }
                    self.connections.push(connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Mostly too many open files; errors return at once, and a loop on them would spin.
                Err(_) => return std::thread::sleep(ACCEPT_RETRY),
            }
        }
    }
}

impl<A> Server<A> {
    /// Closes the oldest connection of those that matter least: who says nothing, or waits and has hung up; then who has its
    /// answer; then who waits or is being answered; and last who asks for what must not wait.
    fn make_room(&mut self) {
        let rank = |connection: &Connection| match &connection.state {
            State::Asked(request) if self.first.contains(&request.path.as_str()) => 3,
            State::Asked(_) | State::Making(_) if connection.has_hung_up() => 0,
            State::Asking(_) => 0,
            State::Leaving => 1,
            State::Asked(_) | State::Making(_) | State::Answering(..) => 2,
        };
        // The first of several that are least.
        if let Some((index, _)) = self.connections.iter().enumerate().min_by_key(|(_, connection)| rank(connection)) {
            self.connections.remove(index);
        }
    }
}

impl Connection {
    /// Will the peer send nothing more? It may still want its answer, so this alone is no reason to close.
    fn has_hung_up(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock && error.kind() != io::ErrorKind::Interrupted,
        }
    }

    /// Reads and writes as much as it can without waiting, up to a whole request or answer; false once it is over.
    fn go_on(&mut self) -> bool {
        match self.try_go_on() {
            Ok(goes_on) => goes_on,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn try_go_on(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut forgets_left = FORGETS_A_TURN;
        loop {
            match &mut self.state {
                State::Asking(head) => {
                    let len = self.stream.read(&mut bytes)?;
                    if len == 0 {
                        return Ok(false);
                    }
                    head.extend_from_slice(&bytes[..len]);
                    match asked(head) {
                        None => {}
                        Some(Ok(request)) => self.state = State::Asked(request),
                        Some(Err(refusal)) => self.state = State::Answering(refusal, 0),
                    }
                }
                State::Asked(_) | State::Making(_) => return Ok(true),
                State::Answering(out, at) => {
                    while *at < out.len() {
                        *at += self.stream.write(&out[*at..])?;
                    }
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Leaving;
                }
                State::Leaving => {
                    if forgets_left == 0 {
                        return Ok(true);
                    }
                    forgets_left -= 1;
                    if self.stream.read(&mut bytes)? == 0 {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

/// The request that begins so, or the answer that refuses it; nothing until its head is whole.
fn asked(head: &[u8]) -> Option<Result<Request, Vec<u8>>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head);
    let is_head = request.method == Some("HEAD");
    let refuse = |status, more| Some(Err(refused(status, more, is_head)));
    match parsed {
        Ok(httparse::Status::Partial) if head.len() < HEAD_LEN_MAX => return None,
        Ok(httparse::Status::Complete(len)) if len <= HEAD_LEN_MAX => {}
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return refuse("431 Request Header Fields Too Large", ""),
        Err(_) => return refuse("400 Bad Request", ""),
    }
    if !is_head && request.method != Some("GET") {
        return refuse("405 Method Not Allowed", "Allow: GET, HEAD\r\n");
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
    Some(Ok(Request { path, is_head }))
}

/// The whole answer to a request, if this is what its path shows.
fn answered(request: &Request, page: Option<Page>) -> Vec<u8> {
    let Some(page) = page else { return refused("404 Not Found", "", request.is_head) };
    let status = if page.is_fine { "200 OK" } else { "503 Service Unavailable" };
    let mut out = response(status, "Cache-Control: no-store\r\n", page.content_type, page.body.len());
    if !request.is_head {
        out.extend_from_slice(page.body.as_bytes());
    }
    out
}

fn refused(status: &str, more: &str, is_head: bool) -> Vec<u8> {
    let body = format!("{}\n", status.split_once(' ').map_or(status, |(_, reason)| reason));
    let mut out = response(status, more, "text/plain; charset=utf-8", body.len());
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
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

    /// More than a socket takes of what nobody reads.
    const LONG_LEN: usize = 32 << 20;

    fn page(path: &str) -> Option<Page> {
        let body = match path {
            "/long" => "x".repeat(LONG_LEN),
            "/here" | "/not" => "a body\n".into(),
            _ => return None,
        };
        Some(Page { is_fine: path != "/not", content_type: "text/plain", body })
    }

    fn server(limits: Limits) -> (HttpServer, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        (HttpServer::start("http-test", listener, limits, &[], || {}, page).unwrap(), addr)
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
        let answer = ask(addr, b"GET /elsewhere HTTP/1.1\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 404 Not Found\r\n") && answer.ends_with("\r\n\r\nNot Found\n"),
            "{answer}"
        );
        for refused in ["HEAD /elsewhere HTTP/1.1\r\n\r\n".to_owned(), format!("HEAD /{:9000} HTTP/1.1\r\n\r\n", "")] {
            let answer = ask(addr, refused.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 4") && answer.ends_with("\r\n\r\n"), "no body: {answer}");
        }
        server.stop();
    }

    #[test]
    fn a_server_that_stops_cuts_off_who_is_there_and_accepts_nobody() {
        let (server, addr) = server(Limits { time: Duration::from_secs(600), ..Limits::default() });
        let mut stream = connect(addr);
        stream.write_all(b"GET /he").unwrap();
        server.stop();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
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
        assert_eq!(rest(&mut stream).split_once("\r\n\r\n").unwrap().1.len(), LONG_LEN);
        server.stop();
    }

    /// What a server does with the connections of a turn, on this thread.
    fn idle(limits: Limits) -> Server<fn(&str) -> Option<Page>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let answer: Arc<fn(&str) -> Option<Page>> = Arc::new(page);
        let maker = Maker::start("http-test", || {}, Arc::clone(&answer)).unwrap();
        Server { listener, limits, first: &[], answer, maker, connections: Vec::new() }
    }

    /// Accepts so many that have connected.
    fn accept_all<A: Fn(&str) -> Option<Page>>(server: &mut Server<A>, count: usize) {
        let before = server.connections.len();
        while server.connections.len() < before + count {
            server.accept(Instant::now());
        }
    }

    #[test]
    fn silent_peers_shut_nobody_out() {
        let (server, addr) = server(Limits { connections: 4, time: Duration::from_secs(600) });
        let mut silent: Vec<_> = (0..4).map(|_| connect(addr)).collect();
        assert!(ask(addr, b"GET /here HTTP/1.1\r\n\r\n").ends_with("a body\n"));
        assert_eq!(silent[0].read(&mut [0; 1]).unwrap_or(0), 0, "the oldest gave way");
        server.stop();
    }

    #[test]
    fn peers_that_do_not_come_to_an_end_are_closed_in_time() {
        let (server, addr) = server(Limits { connections: 4, time: Duration::from_millis(300) });
        let mut slow: Vec<_> = (0..4).map(|_| connect(addr)).collect();
        for stream in &mut slow {
            stream.write_all(b"GET /he").ok();
            assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        }
        server.stop();
    }

    /// It sends on and on behind its request.
    #[test]
    fn who_has_its_answer_and_sends_on_holds_up_nobody_and_is_closed_in_time() {
        let (server, addr) = server(Limits { connections: 4, time: Duration::from_secs(1) });
        let mut stream = connect(addr);
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"GET /here HTTP/1.1\r\n\r\n").unwrap();
        let chatter = std::thread::spawn(move || while stream.write_all(&[b'x'; 65_536]).is_ok() {});
        assert!(ask(addr, b"GET /here HTTP/1.1\r\n\r\n").ends_with("a body\n"));
        // An end: it is reset.
        chatter.join().unwrap();
        server.stop();
    }

    #[test]
    fn who_says_nothing_gives_way_before_who_is_being_answered() {
        let mut server = idle(Limits { connections: 2, time: Duration::from_secs(600) });
        let addr = server.listener.local_addr().unwrap();
        let mut answered = connect(addr);
        answered.write_all(b"GET /long HTTP/1.1\r\n\r\n").unwrap();
        accept_all(&mut server, 1);
        while matches!(server.connections[0].state, State::Asking(_)) {
            server.connections[0].go_on();
        }
        server.answer_some();
        server.hand_out().unwrap();
        let mut silent = connect(addr);
        accept_all(&mut server, 1);
        let _third = connect(addr);
        while server.connections[1].stream.peer_addr().unwrap() == silent.local_addr().unwrap() {
            server.accept(Instant::now());
        }
        assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        assert!(matches!(server.connections[0].state, State::Answering(..)));
        drop(answered);
    }

    /// Scrapes that were given up wait for a page that does not come; a probe whose request is still under way outlasts them,
    /// and one that has asked outlasts scrapes that wait.
    #[test]
    fn who_has_hung_up_is_as_good_as_silent_and_who_must_not_wait_gives_way_last() {
        let mut server = idle(Limits { connections: 3, time: Duration::from_secs(600) });
        server.first = &["/not"];
        let addr = server.listener.local_addr().unwrap();
        let asking = |path: &str| {
            let mut stream = connect(addr);
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
            stream
        };
        let until_asked = |server: &mut Server<_>, index: usize| {
            while matches!(server.connections[index].state, State::Asking(_)) {
                assert!(server.connections[index].go_on());
            }
        };
        // The server's end of each connection.
        let has = |server: &Server<fn(&str) -> Option<Page>>, stream: &TcpStream| {
            let own = stream.local_addr().unwrap();
            server.connections.iter().any(|connection| connection.stream.peer_addr().unwrap() == own)
        };
        let (given_up, waiting) = (asking("/here"), asking("/here"));
        accept_all(&mut server, 2);
        until_asked(&mut server, 0);
        until_asked(&mut server, 1);
        let silent = connect(addr);
        accept_all(&mut server, 1);
        given_up.shutdown(Shutdown::Write).unwrap();
        while !server.connections[0].has_hung_up() {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.make_room();
        assert!(has(&server, &silent) && !has(&server, &given_up) && has(&server, &waiting));
        server.make_room();
        assert!(!has(&server, &silent) && has(&server, &waiting), "silent ones next");
        let probe = asking("/not");
        accept_all(&mut server, 1);
        until_asked(&mut server, 1);
        // The probe is the older one.
        server.connections.swap(0, 1);
        server.make_room();
        assert!(has(&server, &probe) && !has(&server, &waiting));
    }

    /// The page that is held up is let go only after what was asked for meanwhile has come.
    #[test]
    fn a_page_that_takes_its_time_holds_up_none_that_must_not_wait() {
        let (begun, begins) = sync_channel(2);
        let (let_go, held) = sync_channel::<()>(2);
        let held = std::sync::Mutex::new(held);
        let answer = move |path: &str| {
            if path == "/here" {
                begun.send(()).unwrap();
                held.lock().unwrap().recv().unwrap();
            }
            page(path)
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let limits = Limits { time: Duration::from_secs(600), ..Limits::default() };
        let server = HttpServer::start("http-test", listener, limits, &["/not"], || {}, answer).unwrap();
        let mut waiting = [connect(addr), connect(addr)];
        for stream in &mut waiting {
            stream.write_all(b"GET /here HTTP/1.1\r\n\r\n").unwrap();
        }
        begins.recv().unwrap();
        for _ in 0..3 {
            assert!(ask(addr, b"GET /not HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
        }
        assert!(begins.try_recv().is_err(), "one at a time");
        let_go.send(()).unwrap();
        begins.recv().unwrap();
        assert!(ask(addr, b"GET /not HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
        let_go.send(()).unwrap();
        for stream in &mut waiting {
            assert!(rest(stream).ends_with("a body\n"));
        }
        server.stop();
    }
}
