//! A probe's result as text: what a person reads first stands last.

use std::fmt::Write;

use super::result::{Aside, FlushCell, Probe, Times};
use crate::io::{AppendMode, SyncCall};

/// All figures.
pub(super) fn of(probe: &Probe) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, probe);
    text
}

fn write(out: &mut String, probe: &Probe) -> std::fmt::Result {
    let site = &probe.site;
    writeln!(out, "folder      {}", site.dir.display())?;
    writeln!(
        out,
        "file system {} on {} at {} ({})",
        site.file_system,
        site.source,
        site.mounted_at.display(),
        site.mount_options
    )?;
    let cache = site.write_cache.as_deref().unwrap_or("unknown");
    writeln!(out, "device      write cache: {cache}; free: {} GiB of {} GiB", site.available >> 30, site.size >> 30)?;
    writeln!(
        out,
        "machine     Linux {}, {} cores, load {:.2}",
        site.kernel,
        site.cores,
        f64::from(site.load_percent) / 100.0
    )?;
    writeln!(out, "run         {} s, {} MiB written", probe.seconds, probe.written >> 20)?;

    writeln!(out, "\nA batch on stable storage: p50 / p99 / max in µs (MiB/s)")?;
    let mut lens: Vec<_> = probe.flush.iter().map(|cell| cell.len).collect();
    lens.sort_unstable();
    lens.dedup();
    write!(out, "{:<9}{:<11}{:<11}", "append", "sync call", "blocks")?;
    lens.iter().try_for_each(|len| write!(out, "{:>28}", format!("{} KiB", len >> 10)))?;
    writeln!(out)?;
    for append in [AppendMode::Buffered, AppendMode::Dma, AppendMode::Mmap] {
        for call in [SyncCall::Fdatasync, SyncCall::ODsync] {
            for zeroed in [true, false] {
                let row: Vec<_> = lens.iter().map(|len| cell(probe, append, call, zeroed, *len)).collect();
                if row.iter().all(Option::is_none) {
                    continue;
                }
                let blocks = if zeroed { "zeroed" } else { "unwritten" };
                write!(out, "{:<9}{:<11}{blocks:<11}", append.word(), call.word())?;
                for cell in row {
                    let text = cell.map_or_else(
                        || "not measured".to_owned(),
                        |cell| format!("{} ({:.0})", three(&cell.times), cell.mib_per_s()),
                    );
                    write!(out, "{text:>28}")?;
                }
                writeln!(out)?;
            }
        }
    }

    writeln!(out, "\nGroup commit: records of 1 KiB, one batch of all waiters (zeroed blocks): p50 / p99 / max in µs")?;
    let mut waiters: Vec<_> = probe.group_commit.iter().map(|cell| cell.waiters).collect();
    waiters.sort_unstable();
    waiters.dedup();
    for waiters in waiters {
        let Some(best) = probe.best_group(waiters) else { continue };
        writeln!(
            out,
            "{waiters:>5} waiters  {:>24}  {:>9.0} msg/s  by {} with {}",
            three(&best.times),
            best.messages_per_s(),
            best.append.word(),
            best.sync_call.word()
        )?;
    }

    writeln!(
        out,
        "\nAppends of 33,000 bytes that nobody waits for, 1,000 a second, the file synced meanwhile: p50 / p99 / max in µs"
    )?;
    for cell in &probe.append {
        writeln!(
            out,
            "{:<9}{:>24}  {:>6.0} µs of processor time a MiB",
            cell.append.word(),
            three(&cell.times),
            cell.cpu_us_per_mib
        )?;
    }

    let segments = &probe.segments;
    writeln!(out, "\nCommit log files of {} MiB", segments.len >> 20)?;
    for (what, rates) in [("write", &segments.write), ("read", &segments.read)] {
        let rates: Vec<_> =
            rates.iter().map(|one| format!("{:.0} MiB/s {}", one.mib_per_s, one.append.word())).collect();
        writeln!(out, "{what:<17} {}", rates.join(", "))?;
    }
    let mut aside = |what: &str, aside: &Aside| {
        let flush = aside.flush_max_us.map_or_else(String::new, |max| format!("; slowest flush meanwhile {}", ms(max)));
        writeln!(out, "{what:<17} {}, longest step {}{flush}", ms(aside.times.p50_us), ms(aside.step_max_us))
    };
    aside("roll", &segments.roll)?;
    aside("delete stepwise", &segments.delete_stepwise)?;
    aside("delete at once", &segments.delete_at_once)?;
    writeln!(
        out,
        "{:<17} {} µs: a flush of 4 KiB every now and then, nothing else",
        "quiet",
        three(&segments.quiet_flush)
    )?;

    writeln!(out, "\nBeside the disk: p50 / p99 / max in µs")?;
    writeln!(out, "{:<17} {}", "loopback echo", three(&probe.hop.echo))?;
    writeln!(out, "{:<17} {}", "two wake-ups", three(&probe.hop.wake))?;

    if let Some(best) = probe.one_record() {
        writeln!(
            out,
            "\nOne record of 4 KiB on stable storage: p50 {} µs, p99 {} µs, by {} with {} into {} blocks",
            best.times.p50_us,
            best.times.p99_us,
            best.append.word(),
            best.sync_call.word(),
            if best.zeroed { "zeroed" } else { "unwritten" }
        )?;
    }
    probe.remarks.iter().try_for_each(|remark| writeln!(out, "NOTE: {remark}"))
}

fn cell(probe: &Probe, append: AppendMode, call: SyncCall, zeroed: bool, len: u64) -> Option<&FlushCell> {
    probe.flush.iter().find(|cell| (cell.append, cell.sync_call, cell.zeroed, cell.len) == (append, call, zeroed, len))
}

fn three(times: &Times) -> String {
    format!("{:.0} / {:.0} / {:.0}", times.p50_us, times.p99_us, times.max_us)
}

fn ms(us: f64) -> String {
    format!("{:.1} ms", us / 1000.0)
}
