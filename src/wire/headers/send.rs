//! The header of a send, in its long (10) and its one-letter form (310, 320). Source: remoting.md 3.1.

use crate::wire::batch;
use crate::wire::code::request::SEND_MESSAGE;
use crate::wire::command::{Command, FieldError, Language, is_true, number};

/// 10, 310, 320: one message, or a batch of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub producer_group: &'a str,
    /// May be empty, which is no topic name but has an answer of its own.
    pub topic: &'a str,
    /// Template for a topic that must be made first.
    pub default_topic: &'a str,
    pub default_topic_queue_nums: i32,
    /// Negative: any queue.
    pub queue_id: i32,
    pub sys_flag: i32,
    /// Client's clock, ms.
    pub born_timestamp: i64,
    pub flag: i32,
    /// As on disk; empty if there are none.
    pub properties: &'a str,
    pub reconsume_times: i32,
    pub unit_mode: bool,
    pub max_reconsume_times: Option<i32>,
    /// The body is a batch; this and not the code decides it.
    pub batch: bool,
}

/// The fields of both forms, in one order.
const NAMES: [(&str, &str); FIELD_COUNT] = [
    ("producerGroup", "a"),
    ("topic", "b"),
    ("defaultTopic", "c"),
    ("defaultTopicQueueNums", "d"),
    ("queueId", "e"),
    ("sysFlag", "f"),
    ("bornTimestamp", "g"),
    ("flag", "h"),
    ("properties", "i"),
    ("reconsumeTimes", "j"),
    ("unitMode", "k"),
    ("maxReconsumeTimes", "l"),
    ("batch", "m"),
];
const FIELD_COUNT: usize = 13;
const FIRST_LETTER: u8 = b'a';

impl<'a> SendHeader<'a> {
    /// Reads the form that the code asks for, in one pass over the fields.
    ///
    /// The C++ 1.x library marks a batch by "1" in the long form, which Java does not see; here it counts if the body
    /// is indeed a batch (remoting.md 4.4).
    ///
    /// # Errors
    /// [`FieldError`] of the first eight fields.
    pub fn read(command: &'a Command<'_>) -> Result<SendHeader<'a>, FieldError> {
        let long_form = command.code == SEND_MESSAGE;
        let mut values = [None; FIELD_COUNT];
        for (name, value) in command.ext.iter() {
            let index = if long_form { long_index(name) } else { letter_index(name) };
            if let Some(slot) = index.and_then(|index| values.get_mut(index)) {
                *slot = Some(value);
            }
        }
        let fields = Fields { values, long_form };
        Ok(SendHeader {
            producer_group: fields.text(0)?,
            topic: fields.text(1)?,
            default_topic: fields.text(2)?,
            default_topic_queue_nums: fields.number(3)?,
            queue_id: fields.number(4)?,
            sys_flag: fields.number(5)?,
            born_timestamp: fields.number(6)?,
            flag: fields.number(7)?,
            properties: fields.values[8].unwrap_or_default(),
            reconsume_times: fields.opt_int(9).unwrap_or(0),
            unit_mode: fields.values[10].is_some_and(is_true),
            max_reconsume_times: fields.opt_int(11),
            batch: fields.values[12].is_some_and(|batch| {
                is_true(batch)
                    || batch == "1"
                        && long_form
                        && command.language == Language::Cpp
                        && batch::entries(command.body).is_ok()
            }),
        })
    }
}

fn letter_index(name: &str) -> Option<usize> {
    match name.as_bytes() {
        [letter] => letter.checked_sub(FIRST_LETTER).map(usize::from),
        _ => None,
    }
}

fn long_index(name: &str) -> Option<usize> {
    NAMES.iter().position(|(long, _)| *long == name)
}

struct Fields<'a> {
    values: [Option<&'a str>; FIELD_COUNT],
    long_form: bool,
}

impl<'a> Fields<'a> {
    fn name(&self, index: usize) -> &'static str {
        let (long, letter) = NAMES[index];
        if self.long_form { long } else { letter }
    }

    fn text(&self, index: usize) -> Result<&'a str, FieldError> {
        self.values[index].ok_or_else(|| FieldError::Missing { name: self.name(index) })
    }

    fn number<N: std::str::FromStr>(&self, index: usize) -> Result<N, FieldError> {
        number(self.name(index), self.text(index)?)
    }

    fn opt_int(&self, index: usize) -> Option<i32> {
        self.values[index]?.parse().ok()
    }
}
