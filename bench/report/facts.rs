//! The conditions: what the load was, and on what machine; first where runs differ, then what they share.

use serde_json::Value;

use super::Run;
use super::markup::Markup;

/// One table of facts. `of` gives a run's rows as name and text.
pub fn draw(page: &mut Markup, runs: &[Run], of: impl Fn(&Run) -> Vec<(String, String)>) {
    let all: Vec<Vec<(String, String)>> = runs.iter().map(of).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let values = |name: &str| -> Vec<&str> {
        let of = |rows: &'_ Vec<(String, String)>| rows.iter().position(|(found, _)| found == name);
        all.iter().map(|rows| of(rows).map_or("–", |at| rows[at].1.as_str())).collect()
    };
    let (same, different): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| values(name).windows(2).all(|pair| pair[0] == pair[1]));
    if !different.is_empty() {
        page.open("div", &[("class", "scroll")]).open("table", &[("class", "facts")]);
        page.open("thead", &[]).open("tr", &[]).leaf("th", &[], "differs");
        for run in runs {
            page.leaf("th", &[], &run.name);
        }
        page.close().close().open("tbody", &[]);
        for name in different {
            page.open("tr", &[]).leaf("th", &[], name);
            for value in values(name) {
                page.leaf("td", &[], value);
            }
            page.close();
        }
        page.close().close().close();
    }
    if same.is_empty() {
        return;
    }
    page.open("div", &[("class", "scroll")]).open("table", &[("class", "facts")]);
    if runs.len() > 1 {
        page.open("thead", &[]).open("tr", &[]).leaf("th", &[], "the same").leaf("th", &[], "in all runs").close();
        page.close();
    }
    page.open("tbody", &[]);
    for name in same {
        page.open("tr", &[]).leaf("th", &[], name).leaf("td", &[], values(name)[0]).close();
    }
    page.close().close().close();
}

/// A tree of settings as rows, `outer.inner` by name.
pub fn rows(value: &Value) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    rows
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, rows);
            }
            return;
        }
        Value::String(text) if text.is_empty() => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "–".to_owned(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    };
    rows.push((name.to_owned(), text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_settings_becomes_rows() {
        let plan = serde_json::json!({"pace": {"open": {"rate": "12000"}}, "tags": 0, "cores": [], "label": ""});
        let expected = [("pace.open.rate", "12000"), ("tags", "0"), ("cores", "–"), ("label", "–")];
        assert_eq!(rows(&plan), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }
}
