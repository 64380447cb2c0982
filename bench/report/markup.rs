//! Writes HTML and SVG so that no text of a user can become markup and every tag is closed.

use std::fmt::Write;

/// Elements that may have no content, and so no closing tag, in HTML; SVG writes its empty ones the same way.
const EMPTY: [&str; 8] = ["meta", "br", "line", "rect", "circle", "polyline", "polygon", "path"];

/// A document under way. Names of tags and attributes are the program's own; all other text is escaped here.
#[derive(Default)]
pub struct Markup {
    out: String,
    open: Vec<&'static str>,
}

impl Markup {
    pub fn new() -> Markup {
        Markup::default()
    }

    /// Opens an element; [`Markup::close`] closes it.
    pub fn open(&mut self, tag: &'static str, attributes: &[(&'static str, &str)]) -> &mut Markup {
        self.start(tag, attributes);
        self.out.push('>');
        self.open.push(tag);
        self
    }

    /// Closes what was opened last.
    ///
    /// # Panics
    /// If nothing is open.
    pub fn close(&mut self) -> &mut Markup {
        let tag = self.open.pop().expect("something is open");
        let _ = write!(self.out, "</{tag}>");
        // Lines that a person can read where it changes nothing.
        if !["span", "b", "text", "title", "a", "td", "th", "code"].contains(&tag) {
            self.out.push('\n');
        }
        self
    }

    /// Text, escaped.
    pub fn text(&mut self, text: &str) -> &mut Markup {
        escape(&mut self.out, text);
        self
    }

    /// An element with only text in it.
    pub fn leaf(&mut self, tag: &'static str, attributes: &[(&'static str, &str)], text: &str) -> &mut Markup {
        self.open(tag, attributes).text(text).close()
    }

    /// An element without content.
    ///
    /// # Panics
    /// If it is one that needs a closing tag.
    pub fn empty(&mut self, tag: &'static str, attributes: &[(&'static str, &str)]) -> &mut Markup {
        assert!(EMPTY.contains(&tag), "<{tag}> needs a closing tag");
        self.start(tag, attributes);
        self.out.push_str("/>");
        self
    }

    /// The program's own style sheet, as it is.
    pub fn style(&mut self, css: &'static str) -> &mut Markup {
        let _ = write!(self.out, "<style>\n{css}</style>\n");
        self
    }

    /// A finished piece.
    pub fn piece(&mut self, piece: Markup) -> &mut Markup {
        self.out.push_str(&piece.finish());
        self
    }

    /// The text of all.
    ///
    /// # Panics
    /// If something is still open.
    pub fn finish(self) -> String {
        assert!(self.open.is_empty(), "still open: {:?}", self.open);
        self.out
    }

    fn start(&mut self, tag: &'static str, attributes: &[(&'static str, &str)]) {
        let _ = write!(self.out, "<{tag}");
        for (name, value) in attributes {
            let _ = write!(self.out, " {name}=\"");
            escape(&mut self.out, value);
            self.out.push('"');
        }
    }
}

/// Adds `text` so that it means itself in an element and in an attribute. Control characters, which no document may
/// have, become a visible sign.
fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_cannot_become_markup() {
        let mut page = Markup::new();
        page.leaf("span", &[("title", "\"><script>")], "<b>&'\u{7}");
        let expected = "<span title=\"&quot;&gt;&lt;script&gt;\">&lt;b&gt;&amp;&#39;\u{fffd}</span>";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    #[should_panic(expected = "still open: [\"div\"]")]
    fn a_page_with_an_open_tag_is_never_given_out() {
        let mut page = Markup::new();
        page.open("div", &[]);
        page.finish();
    }
}
