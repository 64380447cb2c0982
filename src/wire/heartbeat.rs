//! The body of a heartbeat (34): which groups a client is in, and what they subscribe to. Source: remoting.md 3.4.

use serde_json::{Value, json};

use super::Subscription;
use super::body::{BodyError, flag, int_or, list, parse_object, present, text};
use crate::types::json::as_i32;

/// All that one client says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub client_id: String,
    /// Producer groups.
    pub producers: Vec<String>,
    pub consumers: Vec<ConsumerEntry>,
    /// Hash of the heartbeat (5.x); 0: the client does not shorten heartbeats.
    pub fingerprint: i32,
    /// The subscriptions are left out because they have not changed (5.x).
    pub without_subscriptions: bool,
}

/// One consumer group of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerEntry {
    pub group: String,
    pub consume_type: ConsumeType,
    pub message_model: MessageModel,
    pub consume_from: ConsumeFrom,
    pub unit_mode: bool,
    pub subscriptions: Vec<Subscription>,
}

/// Defines an enum that peers write by name or by position.
macro_rules! java_enum {
    ($(#[$doc:meta])* $name:ident, $expected:literal, { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($variant),+ }

        impl $name {
            const ALL: &[$name] = &[$($name::$variant),+];

            /// The name that bodies show.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            fn read(object: &Value, field: &'static str, default: $name) -> Result<$name, BodyError> {
                let Some(value) = present(object, field) else { return Ok(default) };
                let named = value.as_str().and_then(|name| Self::ALL.iter().find(|known| known.name() == name));
                let numbered = || Self::ALL.get(usize::try_from(as_i32(value)?).ok()?);
                named.or_else(numbered).copied().ok_or(BodyError::Wrong { field, expected: $expected })
            }
        }
    };
}

java_enum! {
    /// Who asks whom for messages.
    ConsumeType, "a known consume type", {
        Actively = "CONSUME_ACTIVELY",
        Passively = "CONSUME_PASSIVELY",
        Pop = "CONSUME_POP",
    }
}
java_enum! {
    /// Whether members share a topic's messages or each get all.
    MessageModel, "a known message model", { Broadcasting = "BROADCASTING", Clustering = "CLUSTERING" }
}
java_enum! {
    /// Where a group without an offset starts.
    ConsumeFrom, "a known start position", {
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

impl Heartbeat {
    /// # Errors
    /// [`BodyError`] if this is no JSON object, has no client id, or one of its entries has no group or topic.
    pub fn decode(body: &[u8]) -> Result<Heartbeat, BodyError> {
        let object = parse_object(body)?;
        Ok(Heartbeat {
            client_id: text(&object, "clientID")?,
            producers: list(&object, "producerDataSet", |producer| text(producer, "groupName"))?,
            consumers: list(&object, "consumerDataSet", ConsumerEntry::from_json)?,
            fingerprint: int_or(&object, "heartbeatFingerprint", 0)?,
            without_subscriptions: flag(&object, "withoutSub")?,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let producers: Vec<Value> = self.producers.iter().map(|group| json!({"groupName": group})).collect();
        let consumers: Vec<Value> = self.consumers.iter().map(ConsumerEntry::to_json).collect();
        let object = json!({
            "clientID": self.client_id,
            "consumerDataSet": consumers,
            "heartbeatFingerprint": self.fingerprint,
            "producerDataSet": producers,
            "withoutSub": self.without_subscriptions,
        });
        object.to_string().into_bytes()
    }
}

impl ConsumerEntry {
    fn from_json(value: &Value) -> Result<ConsumerEntry, BodyError> {
        Ok(ConsumerEntry {
            group: text(value, "groupName")?,
            consume_type: ConsumeType::read(value, "consumeType", ConsumeType::Passively)?,
            message_model: MessageModel::read(value, "messageModel", MessageModel::Clustering)?,
            consume_from: ConsumeFrom::read(value, "consumeFromWhere", ConsumeFrom::LastOffset)?,
            unit_mode: flag(value, "unitMode")?,
            subscriptions: list(value, "subscriptionDataSet", Subscription::from_json)?,
        })
    }

    fn to_json(&self) -> Value {
        let subscriptions: Vec<Value> = self.subscriptions.iter().map(Subscription::to_json).collect();
        json!({
            "consumeFromWhere": self.consume_from.name(),
            "consumeType": self.consume_type.name(),
            "groupName": self.group,
            "messageModel": self.message_model.name(),
            "subscriptionDataSet": subscriptions,
            "unitMode": self.unit_mode,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a 5.x push consumer (../shared/golden/wire/java5x-Cons-broker.txt).
    const JAVA: &str = r#"{"clientID":"192.0.2.2@28101#1431211318348","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG_A","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1795975654430,"tagsSet":["TagA","TagB"],"topic":"TopicA"},{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795975654452,"tagsSet":[],"topic":"%RETRY%CG_A"}],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}"#;

    fn subscription(topic: &str, expression: &str, version: i64, tags: &[&str]) -> Subscription {
        Subscription {
            topic: topic.to_owned(),
            expression: expression.to_owned(),
            version,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            expression_type: Subscription::TAG.to_owned(),
            class_filter_mode: false,
        }
    }

    fn java() -> Heartbeat {
        Heartbeat {
            client_id: "192.0.2.2@28101#1431211318348".to_owned(),
            producers: vec!["CLIENT_INNER_PRODUCER".to_owned()],
            consumers: vec![ConsumerEntry {
                group: "CG_A".to_owned(),
                consume_type: ConsumeType::Passively,
                message_model: MessageModel::Clustering,
                consume_from: ConsumeFrom::FirstOffset,
                unit_mode: false,
                subscriptions: vec![
                    subscription("TopicA", "TagA || TagB", 1_795_975_654_430, &["TagA", "TagB"]),
                    subscription("%RETRY%CG_A", "*", 1_795_975_654_452, &[]),
                ],
            }],
            fingerprint: 0,
            without_subscriptions: false,
        }
    }

    #[test]
    fn a_java_heartbeat_is_read_and_written_as_it_was_seen() {
        assert_eq!(Heartbeat::decode(JAVA.as_bytes()).unwrap(), java());
        assert_eq!(String::from_utf8(java().encode()).unwrap(), JAVA);
    }

    #[test]
    fn a_cpp_heartbeat_with_ordinals_and_text_numbers_is_read() {
        let body = concat!(
            r#"{"clientID":"26492-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"#,
            r#""groupName":"CG_CPP","messageModel":1,"subscriptionDataSet":[{"codeSet":[0,0],"subString":"*","#,
            r#""subVersion":"1795975490081","topic":"TopicA"}]}]}"#,
            "\n"
        );
        let heartbeat = Heartbeat::decode(body.as_bytes()).unwrap();
        let entry = &heartbeat.consumers[0];
        assert_eq!((entry.consume_type, entry.message_model), (ConsumeType::Passively, MessageModel::Clustering));
        assert_eq!(entry.consume_from, ConsumeFrom::LastOffset);
        assert_eq!(entry.subscriptions, [subscription("TopicA", "*", 1_795_975_490_081, &[])]);
        assert!(heartbeat.producers.is_empty());
    }

    #[test]
    fn a_client_id_alone_is_a_heartbeat() {
        let heartbeat = Heartbeat::decode(br#"{"clientID":"x@1","consumerDataSet":null}"#).unwrap();
        assert_eq!((heartbeat.client_id.as_str(), heartbeat.consumers.len(), heartbeat.producers.len()), ("x@1", 0, 0));
    }

    #[test]
    fn what_is_no_heartbeat_is_refused_with_the_reason() {
        for (body, reason) in [
            ("", "the body is no JSON"),
            ("not json", "the body is no JSON"),
            ("[]", "the field (whole) of the body must be an object"),
            ("{}", "the body lacks the field clientID"),
            (r#"{"clientID":"x","consumerDataSet":{}}"#, "the field consumerDataSet of the body must be an array"),
            (r#"{"clientID":"x","consumerDataSet":[{}]}"#, "the body lacks the field groupName"),
            (
                r#"{"clientID":"x","producerDataSet":[{"$ref":"$.consumerDataSet[0]"}]}"#,
                "the body lacks the field groupName",
            ),
            (
                r#"{"clientID":"x","consumerDataSet":[{"groupName":"G","messageModel":2}]}"#,
                "the field messageModel of the body must be a known message model",
            ),
            (
                r#"{"clientID":"x","consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_SIDEWAYS"}]}"#,
                "the field consumeType of the body must be a known consume type",
            ),
        ] {
            let error = Heartbeat::decode(body.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{body}: {error}");
        }
    }
}
