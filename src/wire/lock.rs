//! Bodies of queue locks (41, 42). Source: remoting.md 3.6.

use serde_json::{Value, json};

use super::MessageQueue;
use super::body::{BodyError, flag, list, parse_object, text};

/// Queues that a client wants for itself, or gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    pub client_id: String,
    pub group: String,
    pub queues: Vec<MessageQueue>,
    /// Not to be passed on to other brokers (5.x).
    pub only_this_broker: bool,
}

impl LockRequest {
    /// # Errors
    /// [`BodyError`] if this is no JSON object, lacks client or group, or names a queue badly.
    pub fn decode(body: &[u8]) -> Result<LockRequest, BodyError> {
        let object = parse_object(body)?;
        Ok(LockRequest {
            client_id: text(&object, "clientId")?,
            group: text(&object, "consumerGroup")?,
            queues: list(&object, "mqSet", MessageQueue::from_json)?,
            only_this_broker: flag(&object, "onlyThisBroker")?,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let object = json!({
            "clientId": self.client_id,
            "consumerGroup": self.group,
            "mqSet": queues_json(&self.queues),
            "onlyThisBroker": self.only_this_broker,
        });
        object.to_string().into_bytes()
    }
}

/// Those of the queues asked for that the client now holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockResponse {
    pub locked: Vec<MessageQueue>,
}

impl LockResponse {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or names a queue badly.
    pub fn decode(body: &[u8]) -> Result<LockResponse, BodyError> {
        Ok(LockResponse { locked: list(&parse_object(body)?, "lockOKMQSet", MessageQueue::from_json)? })
    }

    pub fn encode(&self) -> Vec<u8> {
        json!({"lockOKMQSet": queues_json(&self.locked)}).to_string().into_bytes()
    }
}

fn queues_json(queues: &[MessageQueue]) -> Vec<Value> {
    queues.iter().map(MessageQueue::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_and_its_answer_are_read_and_written_as_they_were_seen() {
        let body = concat!(
            r#"{"clientId":"192.0.2.2@28983#1472711422010","consumerGroup":"CG_ORD","#,
            r#""mqSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}],"onlyThisBroker":false}"#
        );
        let queue = MessageQueue { topic: "TopicA".to_owned(), broker_name: "broker-a".to_owned(), queue_id: 3 };
        let request = LockRequest::decode(body.as_bytes()).unwrap();
        assert_eq!((request.group.as_str(), &request.queues[..]), ("CG_ORD", [queue.clone()].as_slice()));
        assert_eq!(String::from_utf8(request.encode()).unwrap(), body);

        let body = r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}]}"#;
        let response = LockResponse::decode(body.as_bytes()).unwrap();
        assert_eq!(response.locked, [queue]);
        assert_eq!(String::from_utf8(response.encode()).unwrap(), body);
        assert_eq!(LockResponse::default().encode(), br#"{"lockOKMQSet":[]}"#);
    }

    #[test]
    fn absent_sets_are_empty_and_bad_queues_are_refused() {
        let request = LockRequest::decode(br#"{"clientId":"c","consumerGroup":"G"}"#).unwrap();
        assert!(request.queues.is_empty() && !request.only_this_broker);
        assert!(LockRequest::decode(br#"{"clientId":"c","consumerGroup":"G","mqSet":[{"topic":"T"}]}"#).is_err());
        assert!(LockRequest::decode(br#"{"clientId":"c"}"#).is_err());
    }
}
