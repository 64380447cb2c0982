//! Advice as a settings file: the request, what to expect, what nobody knows, then each line below its reason.

use std::fmt::{self, Write};

use super::{Advice, Loss, Request, ms};
use crate::tuning::probe::Probe;

const WIDTH: usize = 120;

pub(super) fn of(probe: &Probe, request: &Request, advice: &Advice) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, probe, request, advice);
    text
}

fn write(out: &mut String, probe: &Probe, request: &Request, advice: &Advice) -> fmt::Result {
    let Request { p99_ms, rate, size, loss_window_ms } = request;
    let loss = match loss_window_ms {
        None => "no bound on what a loss of power takes".to_owned(),
        Some(0) => "nothing lost".to_owned(),
        Some(window) => format!("at most {window} ms lost"),
    };
    comment(out, "", &format!("Asked for: p99 {p99_ms} ms at {rate} messages a second of {size} bytes, {loss}."))?;
    let site = &probe.site;
    let measured = format!(
        "Measured: {} ({} on {}), by kerolox-tune {}; load {:.2} on {} cores.",
        site.dir.display(),
        site.file_system,
        site.source,
        probe.version,
        f64::from(site.load_percent) / 100.0,
        site.cores
    );
    comment(out, "", &measured)?;
    comment(out, "", &format!("Expected: {}.", advice.expected))?;
    advice.how.iter().try_for_each(|how| comment(out, "- ", how))?;
    comment(out, "", "Not known:")?;
    advice.unknown.iter().try_for_each(|unknown| comment(out, "- ", unknown))?;
    if !probe.remarks.is_empty() {
        comment(out, "", "The probe's own remarks:")?;
        probe.remarks.iter().try_for_each(|remark| comment(out, "- ", remark))?;
    }
    comment(
        out,
        "",
        "Keys that are not here keep their defaults: docs/kerolox.toml, or kerolox check-config THIS_FILE.",
    )?;
    let mut sections: Vec<&str> = Vec::new();
    for line in &advice.lines {
        if !sections.contains(&line.section) {
            sections.push(line.section);
        }
    }
    for section in sections {
        writeln!(out, "\n[{section}]")?;
        for line in advice.lines.iter().filter(|line| line.section == section) {
            comment(out, "", &line.reason)?;
            writeln!(out, "{} = {}", line.key, line.value)?;
        }
    }
    Ok(())
}

impl fmt::Display for super::Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {}, p99 {} of a send; ", ms(self.p50_us), ms(self.p99_us))?;
        match self.loss {
            Loss::Nothing => f.write_str("a loss of power takes nothing that was acknowledged"),
            Loss::WindowMs(window) => write!(f, "a loss of power takes at most the last {window:.0} ms"),
            Loss::Everything => {
                f.write_str("a loss of power takes EVERYTHING, since nothing here is on stable storage")
            }
        }
    }
}

/// A comment, wrapped; `mark` before its first line, and as much space before the others.
fn comment(out: &mut String, mark: &str, text: &str) -> fmt::Result {
    let mut begin = format!("# {mark}");
    let indent = format!("# {}", " ".repeat(mark.len()));
    // What comes from outside, such as a path, must not end the comment.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && begin.chars().count() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{begin}{line}")?;
            begin.clone_from(&indent);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{begin}{line}")
}
