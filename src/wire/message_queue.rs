//! A queue as clients name it. Source: remoting.md 3.0.

use serde_json::{Value, json};

use super::body::{BodyError, int, text};

/// A queue of one broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageQueue {
    pub topic: String,
    pub broker_name: String,
    pub queue_id: i32,
}

impl MessageQueue {
    /// # Errors
    /// [`BodyError`] of any field.
    pub fn from_json(value: &Value) -> Result<MessageQueue, BodyError> {
        Ok(MessageQueue {
            topic: text(value, "topic")?,
            broker_name: text(value, "brokerName")?,
            queue_id: int(value, "queueId")?,
        })
    }

    pub fn to_json(&self) -> Value {
        json!({"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic})
    }
}
