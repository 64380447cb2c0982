//! Files of Java properties. Source: the format that `java.util.Properties.load` documents.

use std::iter::Peekable;
use std::str::Chars;

/// A key with its value, as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// From 1; of several lines the first.
    pub line: usize,
    pub key: String,
    pub value: String,
}

/// Reads all properties in their order; of a key that occurs twice both. The bytes are ISO 8859-1, as Java has it.
///
/// # Errors
/// A `\u` without four hex digits, which Java refuses too; says the line.
pub fn parse(bytes: &[u8]) -> Result<Vec<Property>, String> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    // Ends of lines: \n, \r, \r\n.
    let mut lines = text.split('\n').flat_map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        line.split('\r')
    });
    let (mut found, mut number) = (Vec::new(), 0);
    while let Some(line) = lines.next() {
        number += 1;
        let first = number;
        let mut line = line.trim_start_matches(is_blank).to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while goes_on(&line) {
            line.pop();
            let Some(next) = lines.next() else { break };
            number += 1;
            line.push_str(next.trim_start_matches(is_blank));
        }
        let mut chars = line.chars().peekable();
        let read = |chars: &mut Peekable<Chars<'_>>, is_end: fn(char) -> bool| {
            unescaped(chars, is_end).map_err(|why| format!("line {first}: {why}"))
        };
        let key = read(&mut chars, |c| is_blank(c) || c == '=' || c == ':')?;
        while chars.next_if(|c| is_blank(*c)).is_some() {}
        if chars.next_if(|c| matches!(c, '=' | ':')).is_some() {
            while chars.next_if(|c| is_blank(*c)).is_some() {}
        }
        let value = read(&mut chars, |_| false)?;
        found.push(Property { line: first, key, value });
    }
    Ok(found)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// Does the next line belong to this one: does it end in a backslash that no other escapes?
fn goes_on(line: &str) -> bool {
    line.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1
}

/// Reads up to a character that ends it and is not escaped.
fn unescaped(chars: &mut Peekable<Chars<'_>>, is_end: fn(char) -> bool) -> Result<String, String> {
    let mut units: Vec<u16> = Vec::new();
    while let Some(c) = chars.next_if(|c| !is_end(*c)) {
        let c = match c {
            '\\' => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4);
                    // A character beyond 16 bits stands as two.
                    units.push(unit.ok_or_else(|| format!("\\u{digits} is no character; write four hex digits"))?);
                    continue;
                }
                Some(c) => c,
                None => break,
            },
            c => c,
        };
        units.extend(c.encode_utf16(&mut [0; 2]).iter());
    }
    Ok(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, String, String)> {
        parse(text.as_bytes()).unwrap().into_iter().map(|p| (p.line, p.key, p.value)).collect()
    }

    fn one(text: &str) -> (String, String) {
        let [(_, key, value)] = read(text).try_into().unwrap();
        (key, value)
    }

    #[test]
    fn every_separator_of_key_and_value_is_taken() {
        for text in ["a=b", "a:b", "a b", " \ta = b", "a\t:\tb", "a=b\r\n", "a b\r"] {
            assert_eq!(one(text), ("a".into(), "b".into()), "{text:?}");
        }
        assert_eq!(one("a"), ("a".into(), String::new()));
        assert_eq!(one("a = = b "), ("a".into(), "= b ".into()));
        assert_eq!(one("a==b:c"), ("a".into(), "=b:c".into()));
    }

    #[test]
    fn lines_go_on_behind_a_backslash_and_comments_do_not() {
        let text = "# a = 1\n  ! b = 2\n\nfruits = apple, \\\n    pear, \\\n  # no comment\nnext=1\\\\\nlast=2\\";
        assert_eq!(
            read(text),
            [
                (4, "fruits".into(), "apple, pear, # no comment".into()),
                (7, "next".into(), "1\\".into()),
                (8, "last".into(), "2".into())
            ]
        );
    }

    #[test]
    fn escapes_are_read_as_java_reads_them() {
        assert_eq!(one(r"a\=\:\ b = \t\u4e2d\uD83D\uDE00\q"), ("a=: b".into(), "\t中😀q".into()));
        assert_eq!(parse(b"a = \xe4").unwrap()[0].value, "ä", "the bytes are ISO 8859-1");
        for text in ["a = \\u12", "b=1\na = \\u12x4"] {
            assert!(parse(text.as_bytes()).unwrap_err().contains("four hex digits"));
        }
    }
}
