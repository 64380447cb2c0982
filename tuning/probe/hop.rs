//! The ways of a message beside the disk: a round trip over loopback, and waking a thread that sleeps.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::result::{Hop, Times};

const ECHO_LEN: usize = 1024;
const TRIPS: usize = 2000;
const TIME_MAX: Duration = Duration::from_millis(500);
/// Between two trips, so that who is to be woken sleeps.
const PAUSE: Duration = Duration::from_micros(100);

pub(super) fn measure() -> io::Result<Hop> {
    let echo = Times::of(&echo()?).ok_or(io::ErrorKind::TimedOut)?;
    let wake = Times::of(&wake()).ok_or(io::ErrorKind::TimedOut)?;
    Ok(Hop { echo, wake })
}

/// A send's worth of bytes there and back.
fn echo() -> io::Result<Vec<Duration>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let answers = std::thread::spawn(move || {
        let mut bytes = [0; ECHO_LEN];
        // Ends with the other side.
        while far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_ok() {}
    });
    let mut bytes = [7; ECHO_LEN];
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < TRIPS && began.elapsed() < TIME_MAX {
        let sent = Instant::now();
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
        times.push(sent.elapsed());
        std::thread::sleep(PAUSE);
    }
    drop(near);
    answers.join().expect("it only echoes");
    Ok(times)
}

/// From one thread to another, which sleeps, and back: two wake-ups, as a message needs them that changes cores twice.
fn wake() -> Vec<Duration> {
    let turn = AtomicUsize::new(0);
    let mut times = Vec::new();
    let near = std::thread::current();
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let mut answered = 0;
            loop {
                match turn.load(Ordering::Acquire) {
                    usize::MAX => break,
                    asked if asked > answered => {
                        answered = asked + 1;
                        turn.store(answered, Ordering::Release);
                        near.unpark();
                    }
                    _ => std::thread::park(),
                }
            }
        });
        let began = Instant::now();
        while times.len() < TRIPS && began.elapsed() < TIME_MAX {
            let asked = 2 * times.len() + 1;
            let sent = Instant::now();
            turn.store(asked, Ordering::Release);
            far.thread().unpark();
            while turn.load(Ordering::Acquire) == asked {
                std::thread::park();
            }
            times.push(sent.elapsed());
            std::thread::sleep(PAUSE);
        }
        turn.store(usize::MAX, Ordering::Release);
        far.thread().unpark();
    });
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_take_some_time_and_end() {
        let hop = measure().unwrap();
        assert!(hop.echo.samples > 0 && hop.wake.samples > 0, "{hop:?}");
    }
}
