//! `docs/store-cases.md` is complete and true: each id has its row, and each row names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Letters of the ids, and how many there are of each.
const IDS: [(char, u32); 5] = [('I', 20), ('E', 43), ('J', 23), ('R', 18), ('T', 20)];
/// A row that is put off says so, and to what.
const PUT_OFF: &str = "put off: ";

struct Row {
    id: String,
    proof: String,
}

/// Rows of three columns whose first is an id.
fn rows(text: &str) -> Vec<Row> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").collect::<Vec<_>>())
        .filter(|cells| cells[0].starts_with(|c| IDS.iter().any(|(letter, _)| c == *letter)))
        .filter(|cells| cells[0][1..].parse::<u32>().is_ok())
        .map(|cells| {
            assert_eq!(cells.len(), 3, "{cells:?}");
            assert!(!cells[1].trim().is_empty(), "{cells:?}");
            Row { id: cells[0].to_owned(), proof: cells[2].to_owned() }
        })
        .collect()
}

/// What stands between backticks.
fn names(proof: &str) -> impl Iterator<Item = &str> {
    proof.split('`').skip(1).step_by(2)
}

/// Does this file have a test of this name? Of a file of the interop suite: a function.
fn has_test(text: &str, path: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    if path.starts_with("tests/interop/") {
        return lines.iter().any(|line| line.starts_with(&format!("def {name}(")));
    }
    let at = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")));
    let attributes = |at: usize| lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
    at.is_some_and(|at| attributes(at).any(|line| *line == "#[test]"))
}

#[test]
fn every_row_of_the_store_cases_is_proven_by_tests_that_exist_or_says_where_it_is_put_off_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/store-cases.md")).expect("the document is there");
    let rows = rows(&text);
    let mut wrong = Vec::new();
    for row in &rows {
        let mut named = 0;
        for reference in names(&row.proof).filter(|name| name.contains("::")) {
            named += 1;
            let (path, name) = reference.split_once("::").expect("it has one");
            match fs::read_to_string(root.join(path)) {
                Ok(text) if has_test(&text, path, name) => {}
                Ok(_) => wrong.push(format!("{}: {path} has no test {name}", row.id)),
                Err(error) => wrong.push(format!("{}: {path}: {error}", row.id)),
            }
        }
        let reason = row.proof.split_once(PUT_OFF).map_or("", |(_, reason)| reason.trim());
        if named == 0 && reason.is_empty() {
            wrong.push(format!("{}: neither a test nor \"{PUT_OFF}\" and why", row.id));
        }
    }
    let ids: Vec<_> = rows.iter().map(|row| row.id.clone()).collect();
    let expected = IDS.iter().flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")));
    let expected: BTreeSet<_> = expected.collect();
    let found: BTreeSet<_> = ids.iter().cloned().collect();
    wrong.extend(expected.difference(&found).map(|id| format!("{id}: no row")));
    wrong.extend(found.difference(&expected).map(|id| format!("{id}: nobody knows it")));
    if ids.len() > found.len() {
        wrong.push("an id has more than one row".to_owned());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
