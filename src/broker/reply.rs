//! Where one request's answer goes, and how it is written: straight into the connection's output.

use std::rc::Rc;

use bytes::BytesMut;

use super::meter::{Asked, Meter};
use super::status::Refusal;
use crate::store::PutTimes;
use crate::wire::{Command, FRAME_LEN_MAX, HeaderType, Peer, begin_response, encode_response};

/// What an answer's header takes at most beside a batch's message ids; the rest of a frame is for the body.
const HEAD_LEN_MAX: usize = 64 * 1024;
/// The longest body an answer may have.
pub(super) const BODY_LEN_MAX: usize = FRAME_LEN_MAX - HEAD_LEN_MAX;

/// Whether the answer to a batch of `count` messages fits a frame: their ids of `id_len` bytes with commas between them,
/// and the texts beside, every byte of which may have to be escaped.
pub(super) fn ids_fit(count: usize, id_len: usize, texts_len: usize) -> bool {
    const ESCAPED_LEN_MAX: usize = "\\u0000".len();
    /// Field names, digits and what holds them together.
    const REST_LEN_MAX: usize = 1024;
    count * (id_len + 1) + texts_len * ESCAPED_LEN_MAX + REST_LEN_MAX <= FRAME_LEN_MAX
}

/// The way back to a requester. Writes nothing for a oneway request, whatever it is asked to write.
#[derive(Clone)]
pub(super) struct ReplyTo {
    pub peer: Rc<dyn Peer>,
    header_type: HeaderType,
    version: i32,
    opaque: i32,
    pub oneway: bool,
    pub asked: Asked,
    meter: Rc<Meter>,
}

impl ReplyTo {
    pub fn new(peer: &Rc<dyn Peer>, command: &Command<'_>, version: i32, asked: Asked, meter: Rc<Meter>) -> ReplyTo {
        ReplyTo {
            peer: Rc::clone(peer),
            header_type: command.header_type,
            version,
            opaque: command.opaque,
            oneway: command.is_oneway(),
            asked,
            meter,
        }
    }

    pub fn send(&self, code: i32, remark: Option<&str>, ext: &[(&str, &str)], body: &[u8]) {
        if self.oneway {
            return;
        }
        self.meter.note(&self.asked, code, self.peer.remote());
        self.write(code, remark, ext, body);
    }

    /// As [`ReplyTo::send`], for a put that took these times.
    pub fn send_put(&self, times: &PutTimes, code: i32, remark: Option<&str>, ext: &[(&str, &str)]) {
        if self.oneway {
            return;
        }
        self.meter.note_at(times.answered_us, &self.asked, code, self.peer.remote(), times);
        self.write(code, remark, ext, &[]);
    }

    fn write(&self, code: i32, remark: Option<&str>, ext: &[(&str, &str)], body: &[u8]) {
        self.peer.send(&mut |out| {
            encode_response(out, self.header_type, code, self.version, self.opaque, remark, ext, body);
        });
    }

    pub fn fail(&self, code: i32, remark: &str) {
        self.send(code, Some(remark), &[], &[]);
    }

    pub fn refuse(&self, refusal: &Refusal) {
        self.fail(refusal.code, &refusal.remark);
    }

    /// Sends an answer whose body of `body_len` bytes `append` writes behind the head; if it returns false, having
    /// written nothing, nothing is sent and this returns false too.
    pub fn send_with(
        &self,
        code: i32,
        remark: Option<&str>,
        ext: &[(&str, &str)],
        body_len: usize,
        append: &dyn Fn(&mut BytesMut) -> bool,
    ) -> bool {
        if self.oneway {
            return true;
        }
        let mut sent = true;
        self.peer.send(&mut |out| {
            let start = out.len();
            begin_response(out, self.header_type, code, self.version, self.opaque, remark, ext, body_len);
            sent = append(out);
            if !sent {
                out.truncate(start);
            }
        });
        if sent {
            self.meter.note(&self.asked, code, self.peer.remote());
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_a_batch_fit_a_frame_exactly_until_they_do_not() {
        let largest = (FRAME_LEN_MAX - 1024) / 33;
        assert!(ids_fit(largest, 32, 0) && !ids_fit(largest + 1, 32, 0));
        assert!(!ids_fit(largest, 56, 0) && !ids_fit(largest, 32, 100));
        let mut ids = "F".repeat(32);
        for _ in 1..largest {
            ids.push(',');
            ids.push_str(&"F".repeat(32));
        }
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            let mut out = BytesMut::new();
            let ext = [("msgId", &*ids), ("queueId", "2147483647"), ("queueOffset", "9223372036854775807")];
            encode_response(&mut out, header_type, 0, i32::MAX, i32::MIN, None, &ext, &[]);
            assert!(out.len() <= FRAME_LEN_MAX);
        }
    }
}
