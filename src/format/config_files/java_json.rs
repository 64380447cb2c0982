//! JSON text in the layout of fastjson's pretty printer.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

/// What is to be written: JSON, and the one thing that it has no form for.
pub(super) enum Node<'a> {
    Json(Value),
    /// In the order given; for fastjson's beans that is the alphabet's.
    Object(Vec<(&'a str, Node<'a>)>),
    /// Keys without quotes, all on one line.
    IntMap(&'a BTreeMap<i32, i64>),
}

impl<'a> Node<'a> {
    /// An object with an entry for each of `map`.
    pub(super) fn map<T>(map: &'a BTreeMap<String, T>, entry: impl Fn(&'a T) -> Node<'a>) -> Node<'a> {
        Node::Object(map.iter().map(|(key, value)| (key.as_str(), entry(value))).collect())
    }

    /// The text of a whole file.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut out = String::new();
        self.write(&mut out, 0);
        out.into_bytes()
    }

    fn write(&self, out: &mut String, level: usize) {
        match self {
            Node::Json(value) => write_value(out, value, level),
            Node::Object(entries) => {
                let entries = entries.iter().map(|(key, node)| (*key, node));
                write_object(out, entries, level, |out, node, level| node.write(out, level));
            }
            Node::IntMap(map) => {
                out.push('{');
                for (index, (key, value)) in map.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(out, "{comma}{key}:{value}").expect("a string takes text");
                }
                if !map.is_empty() {
                    new_line(out, level);
                }
                out.push('}');
            }
        }
    }
}

/// An object with `fields` in alphabetical order, as fastjson orders those of a bean.
pub(super) fn bean(fields: impl IntoIterator<Item = (String, Value)>) -> Value {
    Value::Object(fields.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
}

fn write_value(out: &mut String, value: &Value, level: usize) {
    match value {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| (key.as_str(), value));
            write_object(out, entries, level, write_value);
        }
        Value::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, element, level + 1);
            }
            out.push(']');
        }
        scalar => write!(out, "{scalar}").expect("a string takes text"),
    }
}

fn write_object<'a, T>(
    out: &mut String,
    entries: impl ExactSizeIterator<Item = (&'a str, T)>,
    level: usize,
    write_entry: impl Fn(&mut String, T, usize),
) {
    let is_empty = entries.len() == 0;
    out.push('{');
    for (index, (key, value)) in entries.enumerate() {
        if index > 0 {
            out.push(',');
        }
        new_line(out, level + 1);
        write!(out, "{}:", Value::from(key)).expect("a string takes text");
        write_entry(out, value, level + 1);
    }
    if !is_empty {
        new_line(out, level);
    }
    out.push('}');
}

fn new_line(out: &mut String, level: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n('\t', level));
}
