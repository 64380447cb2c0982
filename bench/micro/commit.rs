//! Group commit on a simulated device, in virtual time: how many messages share a flush, and what each waits.
//!
//! `cargo bench --bench commit`; `-- 128` runs only cases with that text in their name. The state machine is the node's own;
//! the device takes a fixed time a flush and a byte, and nothing else takes any. So the figures are the rule's alone: they
//! repeat to the last digit on any machine, and say what no writer on such a device can beat without another rule.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hdrhistogram::Histogram;
use kerolox::log::{Action, Event, GroupCommit, WaiterId};
use kerolox::types::PhyOffset;

/// Bytes of a record.
const RECORD_LEN: u64 = 1190;
/// Messages of a case, of which the first tenth is not measured.
const MESSAGES: u64 = 200_000;
const US_PER_S: f64 = 1e6;

/// What a flush takes.
struct Device {
    name: &'static str,
    flush_us: u64,
    /// Bytes that it takes besides in a µs.
    bytes_per_us: u64,
}

const DEVICES: [Device; 3] = [
    Device { name: "nvme_70us", flush_us: 70, bytes_per_us: 2_000 },
    Device { name: "cloud_1ms", flush_us: 1_000, bytes_per_us: 250 },
    Device { name: "disk_8ms", flush_us: 8_000, bytes_per_us: 150 },
];

enum Load {
    /// So many senders, each with one message under way; `back_us` from an answer to the next message.
    Closed { senders: u64, back_us: u64 },
    /// Messages at random times, so many a second.
    Open { per_s: u64 },
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Message,
    Flushed { to: u64 },
}

struct Figures {
    latency_us: Histogram<u64>,
    flushes: u64,
    messages: u64,
    took_us: u64,
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    println!(
        "{:<26} {:>11} {:>16} {:>9} {:>9} {:>9}   in virtual time",
        "case", "msg/s", "messages a flush", "p50 µs", "p99 µs", "max µs"
    );
    for device in &DEVICES {
        let closed =
            [1, 16, 128, 512].map(|senders| (format!("{senders}_senders"), Load::Closed { senders, back_us: 30 }));
        let open = [12_000, 50_000].map(|per_s| (format!("{per_s}_per_s"), Load::Open { per_s }));
        for (load_name, load) in closed.into_iter().chain(open) {
            let name = format!("{}/{load_name}", device.name);
            if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
                print(&name, &simulate(device, &load));
            }
        }
    }
}

fn print(name: &str, figures: &Figures) {
    let Figures { latency_us, flushes, messages, took_us } = figures;
    println!(
        "{name:<26} {:>11.0} {:>16.1} {:>9} {:>9} {:>9}",
        *messages as f64 / *took_us as f64 * US_PER_S,
        *messages as f64 / *flushes as f64,
        latency_us.value_at_quantile(0.5),
        latency_us.value_at_quantile(0.99),
        latency_us.max(),
    );
}

fn simulate(device: &Device, load: &Load) -> Figures {
    let mut commit = GroupCommit::starting_at(PhyOffset(0));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // Time, then order of making, so that equal times keep their order.
    let mut events = BinaryHeap::new();
    let mut made = 0_u64;
    let mut happen = |events: &mut BinaryHeap<_>, at_us: u64, what: What| {
        made += 1;
        events.push(Reverse((at_us, made, what)));
    };
    match load {
        Load::Closed { senders, .. } => (0..*senders).for_each(|_| happen(&mut events, 0, What::Message)),
        Load::Open { .. } => happen(&mut events, 0, What::Message),
    }
    let mut figures =
        Figures { latency_us: Histogram::new(3).expect("three digits"), flushes: 0, messages: 0, took_us: 0 };
    let (mut sent, mut answered, mut end, mut began_us) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut sent_at = HashMap::new();
    let mut actions = Vec::new();
    while let Some(Reverse((now_us, _, what))) = events.pop() {
        let event = match what {
            What::Message => {
                sent += 1;
                end += RECORD_LEN;
                sent_at.insert(sent, now_us);
                if let Load::Open { per_s } = load
                    && sent < MESSAGES
                {
                    happen(&mut events, now_us + random.pause_us(*per_s), What::Message);
                }
                Event::Appended { end: PhyOffset(end), waiter: Some((WaiterId(sent), u64::MAX)), at_ms: now_us / 1000 }
            }
            What::Flushed { to } => Event::Flushed { to: PhyOffset(to) },
        };
        let flushed = commit.flushed().0;
        commit.step(event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Flush { to } => {
                    let len = to.0 - flushed.max(commit.flushed().0);
                    let done_us = now_us + device.flush_us + len / device.bytes_per_us;
                    happen(&mut events, done_us, What::Flushed { to: to.0 });
                    figures.flushes += u64::from(answered >= MESSAGES / 10);
                }
                Action::Release(WaiterId(id)) => {
                    let at_us = sent_at.remove(&id).expect("it was sent once");
                    answered += 1;
                    if answered == MESSAGES / 10 {
                        began_us = now_us;
                    } else if answered > MESSAGES / 10 {
                        figures.messages += 1;
                        figures.latency_us.record(now_us - at_us).expect("a time that fits");
                    }
                    if let Load::Closed { senders, back_us } = load
                        && answered + senders <= MESSAGES
                    {
                        happen(&mut events, now_us + back_us, What::Message);
                    }
                }
                Action::Fail(id) | Action::TimeOut(id) => panic!("{id:?} failed on a device that never does"),
            }
        }
        figures.took_us = now_us - began_us;
    }
    assert_eq!(answered, sent, "every message is answered");
    figures
}

/// The same in every run.
struct Random(u64);

impl Random {
    /// From one message to the next, if they come at random.
    fn pause_us(&mut self, per_s: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let part = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - part).ln() * US_PER_S / per_s as f64).round() as u64
    }
}
