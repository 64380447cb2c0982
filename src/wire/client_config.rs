//! The body of a client check (46), sent before a consumer with a filter other than tags starts.
//! Source: remoting.md 3.15.

use serde_json::json;

use super::Subscription;
use super::body::{BodyError, opt_text, parse_object, present, text};

/// A subscription that a client wants to be told is fine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfigCheck {
    pub client_id: String,
    pub group: String,
    pub namespace: Option<String>,
    pub subscription: Subscription,
}

impl ClientConfigCheck {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or lacks anything but the namespace.
    pub fn decode(body: &[u8]) -> Result<ClientConfigCheck, BodyError> {
        let object = parse_object(body)?;
        let field = "subscriptionData";
        Ok(ClientConfigCheck {
            client_id: text(&object, "clientId")?,
            group: text(&object, "group")?,
            namespace: opt_text(&object, "namespace")?,
            subscription: Subscription::from_json(present(&object, field).ok_or(BodyError::Missing { field })?)?,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut object = json!({"clientId": self.client_id, "group": self.group});
        if let Some(namespace) = &self.namespace {
            object["namespace"] = json!(namespace);
        }
        object["subscriptionData"] = self.subscription.to_json();
        object.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_of_a_sql_subscription_is_read_and_written_as_it_was_seen() {
        let body = concat!(
            r#"{"clientId":"192.0.2.2@28983#1472711422010","group":"CG_ORD","subscriptionData":{"classFilterMode":false,"#,
            r#""codeSet":[],"expressionType":"SQL92","subString":"TAGS = 'TagA'","subVersion":1795975695935,"#,
            r#""tagsSet":[],"topic":"TopicA"}}"#
        );
        let check = ClientConfigCheck::decode(body.as_bytes()).unwrap();
        assert_eq!((check.group.as_str(), check.namespace.as_deref()), ("CG_ORD", None));
        assert_eq!(check.subscription.expression_type, Subscription::SQL92);
        assert_eq!(check.subscription.expression, "TAGS = 'TagA'");
        assert_eq!(String::from_utf8(check.encode()).unwrap(), body);
    }

    #[test]
    fn a_check_without_a_subscription_is_refused() {
        let error = ClientConfigCheck::decode(br#"{"clientId":"c","group":"G","namespace":null}"#).unwrap_err();
        assert_eq!(error.to_string(), "the body lacks the field subscriptionData");
    }
}
