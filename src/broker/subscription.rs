//! What a group wants of a topic: tag expressions, and the table of a group's subscriptions that pulls are checked against.
//!
//! The control core builds the tables from heartbeats and publishes them in the [`Directory`](super::Directory); shards
//! read them, and parse the expressions that pulls carry themselves. Tag codes are always computed from the expression's
//! text: a client may send wrong ones (the C++ library sends zeros). Source: remoting.md 3.2, 3.4; store.md 7.2.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::types::{TagsCode, java_hash};
use crate::wire;
use crate::wire::heartbeat::{ConsumeType, MessageModel};

/// The expression that takes every message.
pub const ALL: &str = "*";

/// Remark of the refusal of an SQL92 expression, code 1.
pub const SQL92_UNSUPPORTED: &str = "this broker cannot filter by SQL92 yet; use a tag expression";

/// Which messages of a queue an expression lets through, as far as a consume queue unit can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    Tags(TagFilter),
    /// An SQL92 expression. It is kept and shown, but cannot be evaluated yet: a pull with it gets code 1.
    Sql92,
}

impl Filter {
    /// Reads an expression of the type a request names; no type, or an empty one, is a tag expression.
    ///
    /// # Errors
    /// [`BadExpression`]: answered with code 23.
    pub fn parse(expression_type: Option<&str>, expression: &str) -> Result<Filter, BadExpression> {
        match expression_type.unwrap_or_default() {
            "" | wire::Subscription::TAG => TagFilter::parse(expression).map(Filter::Tags),
            wire::Subscription::SQL92 => Ok(Filter::Sql92),
            other => Err(BadExpression::UnknownType { found: shown(other) }),
        }
    }
}

/// The tags an expression names, by hash: it lets a message with another tag of the same hash pass (clients compare the
/// text again), but holds back none that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagFilter {
    /// Everything passes, messages without a tag included.
    pub all: bool,
    pub codes: SmallVec<[i32; 4]>,
}

impl TagFilter {
    /// `*` or nothing: all; else tags between `||`, with any blanks around them.
    ///
    /// # Errors
    /// [`BadExpression::NoTag`] if there are only bars.
    pub fn parse(expression: &str) -> Result<TagFilter, BadExpression> {
        let expression = expression.trim();
        if expression.is_empty() || expression == ALL {
            return Ok(TagFilter { all: true, codes: SmallVec::new() });
        }
        let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
        let codes: SmallVec<[i32; 4]> = tags.map(java_hash).collect();
        if codes.is_empty() {
            return Err(BadExpression::NoTag { found: shown(expression) });
        }
        Ok(TagFilter { all: false, codes })
    }

    /// Whether the message behind a unit may be wanted; a code is compared by its low 32 bits, as Java does.
    pub fn matches(&self, tags: TagsCode) -> bool {
        self.all || self.codes.contains(&(tags.0 as i32))
    }
}

/// An expression that cannot be understood: code 23, with this text as remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadExpression {
    /// Neither TAG nor SQL92.
    UnknownType { found: String },
    /// Bars with no tag between them.
    NoTag { found: String },
}

impl fmt::Display for BadExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadExpression::UnknownType { found } => write!(f, "expression type {found:?} is neither TAG nor SQL92"),
            BadExpression::NoTag { found } => write!(f, "the expression {found:?} names no tag"),
        }
    }
}

impl std::error::Error for BadExpression {}

/// The start of a text, short enough for a remark.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    text.chars().take(SHOWN_MAX).collect()
}

/// What one group asks of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub topic: Arc<str>,
    /// As the client wrote it.
    pub expression: String,
    /// TAG or SQL92, as the client named it.
    pub expression_type: String,
    /// What `expression` means, or why it means nothing: then a pull that relies on it gets code 23.
    pub filter: Result<Filter, BadExpression>,
    /// The client's time of subscribing, ms. A pull that carries a newer one came before its heartbeat: code 25.
    pub sub_version: i64,
}

impl From<&wire::Subscription> for Subscription {
    fn from(asked: &wire::Subscription) -> Subscription {
        Subscription {
            topic: asked.topic.as_str().into(),
            expression: asked.expression.clone(),
            expression_type: asked.expression_type.clone(),
            filter: Filter::parse(Some(&asked.expression_type), &asked.expression),
            sub_version: asked.version,
        }
    }
}

/// What the live members of a group have registered by heartbeat; of two members that differ the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSubscription {
    pub message_model: MessageModel,
    pub consume_type: ConsumeType,
    pub topics: HashMap<Arc<str>, Arc<Subscription>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(expression: &str) -> Vec<i32> {
        let filter = TagFilter::parse(expression).unwrap();
        assert!(!filter.all);
        filter.codes.to_vec()
    }

    #[test]
    fn a_star_or_nothing_takes_every_message() {
        for expression in ["*", "", "  ", " * "] {
            let filter = TagFilter::parse(expression).unwrap();
            assert!(filter.all, "{expression:?}");
            assert!(filter.matches(TagsCode(0)) && filter.matches(TagsCode(97)));
        }
    }

    #[test]
    fn tags_are_cut_at_double_bars_with_any_blanks() {
        for expression in ["TagA||TagB", " TagA || TagB ", "TagA|| ||TagB||"] {
            assert_eq!(codes(expression), [2598919, 2598920], "{expression:?}");
        }
        // A single bar is part of a tag, and a star beside others is a tag of that name: Java reads both so.
        assert_eq!(codes("a|b"), [java_hash("a|b")]);
        assert_eq!(codes("a || *"), [97, 42]);
    }

    #[test]
    fn codes_match_by_their_low_32_bits() {
        let filter = TagFilter::parse("polygenelubricants").unwrap();
        assert!(filter.matches(TagsCode(i64::from(i32::MIN))));
        assert!(filter.matches(TagsCode(0x7_8000_0000)));
        assert!(!filter.matches(TagsCode(0)));
    }

    #[test]
    fn an_expression_without_a_tag_or_of_an_unknown_type_is_refused() {
        assert!(matches!(TagFilter::parse("||"), Err(BadExpression::NoTag { .. })));
        assert!(matches!(Filter::parse(Some("XPATH"), "a"), Err(BadExpression::UnknownType { .. })));
        assert_eq!(Filter::parse(Some("SQL92"), "a > 1"), Ok(Filter::Sql92));
        assert_eq!(Filter::parse(None, "*"), Filter::parse(Some("TAG"), ""));
    }
}
