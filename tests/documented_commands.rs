//! Every command line of the programs that a README or a `--help` prints is one that they take.
//!
//! Each is run by a shell with `--help` behind it, so that its options are read and nothing else happens.

use std::fs;
use std::path::Path;
use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_kerolox-bench");
const TUNE: &str = env!("CARGO_BIN_EXE_kerolox-tune");
const NODE: &str = env!("CARGO_BIN_EXE_kerolox");
const PROGRAMS: [&str; 3] = ["kerolox-bench ", "kerolox-tune ", "kerolox "];
const READMES: [&str; 4] = ["README.md", "bench/README.md", "tuning/README.md", "systemd/README.md"];

/// In the place of the programs: what they say of the options, and the exit code that goes with it.
const SHELL: &str = r#"
    kerolox-bench() { "$BENCH" "$@" --help >/dev/null || exit 2; }
    kerolox-tune() { "$TUNE" "$@" --help >/dev/null || exit 2; }
    kerolox() { "$NODE" "$@" --help >/dev/null || exit 2; }
    pidof() { echo 1; }
"#;

/// What is wrong with a command line.
fn refused(line: &str) -> Option<String> {
    let mut shell = Command::new("bash");
    shell.env("BENCH", BENCH).env("TUNE", TUNE).env("NODE", NODE).env_remove("RUST_LOG");
    let output = shell.args(["-c", &format!("{SHELL}\n{line}")]).output().expect("there is a shell");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success() || told.contains("not found")).then(|| format!("{line}\n{told}"))
}

/// Lines of a text that run one of the programs; those that end with a backslash go on with the next. Behind some of an
/// example's stands what it is for, apart by blanks.
fn command_lines(text: &str, prose_behind: bool) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.trim().trim_start_matches("target/release/").to_owned());
    let ours = lines.filter(|line| PROGRAMS.iter().any(|program| line.starts_with(program)));
    let cut = |line: String| match line.find("  ").filter(|_| prose_behind && !line.contains("--a-command")) {
        Some(at) => line[..at].to_owned(),
        None => line,
    };
    ours.map(cut).collect()
}

fn help(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg("--help").output().expect("the built program starts");
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn readmes_print_commands_that_are_taken() {
    let mut seen = 0;
    for readme in READMES {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(readme)).expect("it is there");
        for line in command_lines(&text, false) {
            seen += 1;
            assert_eq!(refused(&line), None, "{readme}");
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn examples_of_the_help_are_taken() {
    let mut seen = 0;
    for (program, subcommands) in [
        (BENCH, &["run", "compare", "ladder", "soak", "report", "sink"][..]),
        (TUNE, &["check", "apply", "undo", "probe", "recommend"]),
        (NODE, &["serve", "check-config"]),
    ] {
        let mut texts = vec![help(program, &[])];
        texts.extend(subcommands.iter().map(|subcommand| help(program, &[subcommand])));
        for text in texts {
            let examples = text.split_once("Example").map_or("", |(_, rest)| rest);
            for line in command_lines(examples, true) {
                seen += 1;
                assert_eq!(refused(&line), None);
            }
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn what_is_not_taken_is_found() {
    let line = "kerolox-bench compare --a 127.0.0.1:1 --b 127.0.0.1:2 --seconds 10";
    assert!(refused(line).is_some_and(|why| why.contains("--seconds")));
    assert!(refused("kerolox-tune recommend --rate 0").is_some());
}
