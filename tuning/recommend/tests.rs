use super::*;
use crate::config::{Config, Overrides};

/// Three results of probes: a quick device with power-loss protection, a disk that turns, and memory.
fn nvme() -> Probe {
    Probe::parse(include_bytes!("probes/nvme.json")).unwrap()
}

fn slow_disk() -> Probe {
    Probe::parse(include_bytes!("probes/slow-disk.json")).unwrap()
}

fn tmpfs() -> Probe {
    Probe::parse(include_bytes!("probes/tmpfs.json")).unwrap()
}

const USUAL: Request = Request { p99_ms: P99_MS_DEFAULT, rate: RATE_DEFAULT, size: SIZE_DEFAULT, loss_window_ms: None };

fn value<'a>(advice: &'a Advice, section: &str, key: &str) -> Option<&'a str> {
    advice.lines.iter().find(|line| (line.section, line.key) == (section, key)).map(|line| line.value.as_str())
}

/// The settings as the node reads them; each key of the file is one that it knows.
fn config(probe: &Probe, request: &Request, advice: &Advice) -> Config {
    let toml = to_toml(probe, request, advice);
    Config::from_text("kerolox.toml".as_ref(), &toml, Overrides::default())
        .unwrap_or_else(|errors| panic!("{errors}\n{toml}"))
}

#[test]
fn a_quick_device_gets_sync_flush_by_its_quickest_way() {
    let probe = nvme();
    let advice = recommend(&probe, &USUAL).unwrap();
    assert_eq!((advice.mode, advice.expected.loss), (FlushMode::Sync, Loss::Nothing));
    let config = config(&probe, &USUAL, &advice);
    assert_eq!(config.flush.mode, FlushMode::Sync);
    assert_eq!(config.flush.sync_call, crate::config::SyncCall::ODsync);
    assert_eq!(config.store.zero_ahead, crate::config::ZeroAhead::On);
    assert_eq!(config.store.append, crate::config::AppendMode::Buffered, "direct writes gain 5 % here, which is noise");
    let mut small = nvme();
    small.site.cores = 2;
    for cell in small.flush.iter_mut().filter(|cell| cell.append == AppendMode::Buffered) {
        cell.times.mean_us *= 0.9;
    }
    assert_eq!(
        recommend(&small, &USUAL).unwrap().append,
        AppendMode::Dma,
        "the default where one executor has all roles"
    );
    assert_eq!(config.store.root.to_str(), Some("/var/lib/kerolox"));
    assert_eq!(config.retention.hours, 31, "75 % of 1800 GiB at 12.1 MiB/s");
}

#[test]
fn a_way_that_is_clearly_quicker_wins_over_the_default() {
    let mut probe = nvme();
    for cell in probe.flush.iter_mut().filter(|cell| cell.append == AppendMode::Dma) {
        cell.times.mean_us /= 2.0;
    }
    let advice = recommend(&probe, &USUAL).unwrap();
    assert_eq!(advice.append, AppendMode::Dma);
    // Flushes that are slow now and then leave async, which takes the cheapest append.
    for cell in &mut probe.flush {
        cell.times.p99_us *= 100.0;
    }
    for cell in probe.append.iter_mut().filter(|cell| cell.append == AppendMode::Mmap) {
        cell.times.mean_us /= 2.0;
    }
    let request = Request { p99_ms: 1.0, ..USUAL };
    let advice = recommend(&probe, &request).unwrap();
    assert_eq!((advice.mode, advice.append), (FlushMode::Async, AppendMode::Mmap), "{advice:?}");
    assert!(advice.how.iter().any(|line| line.starts_with("not sync: ")), "{:?}", advice.how);
}

#[test]
fn a_disk_that_turns_gets_async_flush_and_the_window_is_told() {
    let probe = slow_disk();
    let advice = recommend(&probe, &USUAL).unwrap();
    assert_eq!(advice.mode, FlushMode::Async);
    let Loss::WindowMs(window) = advice.expected.loss else { panic!("{:?}", advice.expected) };
    assert!((100.0..500.0).contains(&window), "{window}");
    assert!(advice.how.iter().any(|line| line.starts_with("not sync: its p99 would be")), "{:?}", advice.how);
    assert_eq!(value(&advice, "flush", "least_pages"), Some("0"));
    let config = config(&probe, &USUAL, &advice);
    let seldom = recommend(&probe, &Request { rate: 100, ..USUAL }).unwrap();
    assert_eq!(
        (seldom.mode, value(&seldom, "flush", "interval_ms")),
        (FlushMode::Async, Some("100")),
        "the node's own"
    );
    // The node's own 100 ms would be over before half of the flushes of what they gather.
    assert_eq!((config.flush.interval_ms, config.flush.least_pages), (250, 0));
    assert_eq!(config.limits.put_wait_ms, 400, "the disk was seen to hold a flush up for longer than the default");
    // A smaller window is bought by looking more often, down to what the disk can do.
    let narrow = Request { loss_window_ms: Some(300), ..USUAL };
    let advice = recommend(&probe, &narrow).unwrap();
    let Loss::WindowMs(window) = advice.expected.loss else { panic!("{:?}", advice.expected) };
    assert!(window <= 300.0, "{window}");
    assert!(value(&advice, "flush", "interval_ms").unwrap().parse::<u64>().unwrap() < 300);
    let refusal = recommend(&probe, &Request { loss_window_ms: Some(20), ..USUAL }).unwrap_err();
    assert!(refusal.lines[0].starts_with("not sync") && refusal.lines[1].contains("--loss-window-ms "), "{refusal:?}");
}

#[test]
fn a_refusal_names_the_figure_that_forbids_each_way_and_what_would_do() {
    let refusal = recommend(&slow_disk(), &Request { loss_window_ms: Some(0), ..USUAL }).unwrap_err();
    assert_eq!(refusal.lines.len(), 2);
    assert!(
        refusal.lines[0].contains("p99 of a flush of") && refusal.lines[0].contains("20.0 ms are asked for"),
        "{refusal:?}"
    );
    assert!(refusal.lines[1].contains("nothing may be lost"), "{refusal:?}");
    // What it says would do, does.
    let would = |line: &str, flag: &str| -> f64 {
        line.split_once(flag).unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
    };
    let p99_ms = would(&refusal.lines[0], "--p99-ms ");
    assert!(recommend(&slow_disk(), &Request { loss_window_ms: Some(0), p99_ms, ..USUAL }).is_ok());
    // More than the device writes.
    let wide = Request { rate: 200_000, ..USUAL };
    let refusal = recommend(&slow_disk(), &wide).unwrap_err();
    assert_eq!(refusal.lines.len(), 1);
    assert!(refusal.lines[0].contains("the device writes 147 MiB/s"), "{refusal:?}");
    let rate = would(&refusal.lines[0], "--rate ") as u64;
    assert!(recommend(&slow_disk(), &Request { rate, ..USUAL }).is_ok());
    // Quicker than the way itself.
    let refusal = recommend(&nvme(), &Request { p99_ms: 0.01, ..USUAL }).unwrap_err();
    assert!(refusal.lines[1].starts_with("not async: its p99 would be"), "{refusal:?}");
}

#[test]
fn in_memory_nothing_is_promised() {
    let probe = tmpfs();
    let advice = recommend(&probe, &USUAL).unwrap();
    assert_eq!((advice.mode, advice.expected.loss), (FlushMode::Async, Loss::Everything));
    let toml = to_toml(&probe, &USUAL, &advice);
    assert!(toml.contains("takes EVERYTHING") && toml.contains("prove nothing"), "{toml}");
    config(&probe, &USUAL, &advice);
    for loss_window_ms in [Some(0), Some(500)] {
        let refusal = recommend(&probe, &Request { loss_window_ms, ..USUAL }).unwrap_err();
        assert!(refusal.lines[0].contains("flushes cost nothing here"), "{refusal:?}");
    }
}

#[test]
fn the_node_takes_whatever_is_recommended_and_every_line_has_its_reason() {
    for probe in [nvme(), slow_disk(), tmpfs()] {
        for rate in [1, 1000, 100_000, 1_000_000] {
            for size in [1, 1024, 100_000, 15 << 20] {
                for p99_ms in [0.3, 5.0, 1000.0] {
                    for loss_window_ms in [None, Some(0), Some(100), Some(10_000)] {
                        let request = Request { p99_ms, rate, size, loss_window_ms };
                        let Ok(advice) = recommend(&probe, &request) else { continue };
                        assert!(
                            advice.expected.p99_us <= p99_ms * 1000.0
                                && advice.expected.p50_us <= advice.expected.p99_us
                        );
                        assert!(advice.lines.iter().all(|line| !line.reason.is_empty()));
                        let config = config(&probe, &request, &advice);
                        assert_eq!(config.flush.mode, advice.mode);
                        assert!(u64::from(config.limits.max_message_size) >= size);
                        if let (Some(asked), Loss::WindowMs(window)) = (loss_window_ms, advice.expected.loss) {
                            assert!(window <= asked as f64, "{request:?}: {window}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_probe_cannot_know_is_said() {
    let probe = nvme();
    let toml = to_toml(&probe, &USUAL, &recommend(&probe, &USUAL).unwrap());
    for part in ["power-loss", "write through", "other tenants", "processor time", "network"] {
        assert!(toml.contains(part), "{part} is missing in\n{toml}");
    }
    assert!(toml.lines().all(|line| line.chars().count() <= 120), "{toml}");
}

#[test]
fn a_path_cannot_add_settings() {
    let mut probe = nvme();
    probe.root = "/data\"\n[log]\nlevel = \"off".into();
    probe.site.source = "x\nlevel = 1".into();
    let advice = recommend(&probe, &USUAL).unwrap();
    let config = config(&probe, &USUAL, &advice);
    assert_eq!((config.store.root, config.log.level.as_str()), (probe.root.clone(), "info"));
}

/// A curve of one way whose flushes take `base` µs and `per_kib` more for each KiB.
fn curve(base: f64, per_kib: f64) -> Curve {
    let mut probe = nvme();
    probe
        .flush
        .retain(|cell| (cell.append, cell.sync_call, cell.zeroed) == (AppendMode::Buffered, SyncCall::ODsync, true));
    for cell in &mut probe.flush {
        let us = base + per_kib * cell.len as f64 / 1024.0;
        cell.times.mean_us = us;
        cell.times.p50_us = us;
        cell.times.p99_us = 2.0 * us;
    }
    for bandwidth in &mut probe.segments.write {
        bandwidth.mib_per_s = if per_kib > 0.0 { 1e6 / per_kib / 1024.0 } else { 1e6 };
    }
    let mut curves = Curve::all(&probe);
    assert_eq!(curves.len(), 1);
    curves.remove(0)
}

#[test]
fn a_batch_holds_what_arrives_during_a_flush_of_itself() {
    let load = Load { rate: 100_000.0, record_len: 1024.0 };
    let steady = group(&load, &curve(100.0, 0.0)).unwrap();
    assert!((steady.batch - 10.0).abs() < 0.1 && steady.share > 0.99, "{steady:?}");
    // 100 µs and 5 µs a message: b = 0.1 × (100 + 5 b), so 20.
    let steady = group(&load, &curve(100.0, 5.0)).unwrap();
    assert!((steady.batch - 20.0).abs() < 0.2, "{steady:?}");
    // A message a ms: alone in its flush, which runs a tenth of the time.
    let steady = group(&Load { rate: 1000.0, ..load }, &curve(100.0, 0.0)).unwrap();
    assert_eq!(steady.batch, 1.0);
    assert!((steady.share - 0.1).abs() < 0.001, "{steady:?}");
    // 11 µs a message at 100,000 a second: there is no end to it.
    assert!(group(&load, &curve(100.0, 11.0)).is_none());
}

#[test]
fn lengths_between_and_beyond_the_measured_ones_are_in_proportion() {
    let curve = curve(100.0, 1.0);
    for kib in [4.0, 10.0, 300.0, 1024.0, 4096.0, 100_000.0] {
        let flush = curve.at(kib * 1024.0);
        assert!((flush.mean - (100.0 + kib)).abs() < 0.5, "{kib} KiB: {flush:?}");
    }
    assert_eq!(curve.at(1.0), curve.at(4096.0), "less than a page is a page");
}

#[test]
fn a_message_waits_for_half_a_flush_and_its_own_and_in_the_bad_case_for_two() {
    let hop = Latency { p50: 50.0, p99: 90.0 };
    let busy = group(&Load { rate: 100_000.0, record_len: 1024.0 }, &curve(100.0, 0.0)).unwrap();
    let latency = Latency::sync(hop, &busy);
    assert!((latency.p50 - 200.0).abs() < 1.0, "{latency:?}");
    assert!((latency.p99 - 490.0).abs() < 1.0, "{latency:?}");
    let idle = group(&Load { rate: 10.0, record_len: 1024.0 }, &curve(100.0, 0.0)).unwrap();
    let latency = Latency::sync(hop, &idle);
    assert!((latency.p99 - 290.0).abs() < 1.0, "nobody else's flush is in the way: {latency:?}");
}

#[test]
fn a_loss_window_is_the_interval_and_two_flushes_of_what_it_gathers() {
    let load = Load { rate: 1000.0, record_len: 1024.0 };
    // 100 KiB in 100 ms: a flush of 200 µs, p99 400.
    let window = model::loss_window_ms(&load, &curve(100.0, 1.0), 100.0);
    assert!((window - 100.8).abs() < 0.01, "{window}");
}

#[test]
fn spinning_is_only_recommended_where_it_alone_meets_the_request() {
    let probe = nvme();
    let calm = recommend(&probe, &USUAL).unwrap();
    assert_eq!(value(&calm, "cores", "spin_us"), None);
    let hurried = Request { p99_ms: (calm.expected.p99_us - 10.0) / 1000.0, loss_window_ms: Some(0), ..USUAL };
    let spinning = recommend(&probe, &hurried).unwrap();
    assert_eq!(value(&spinning, "cores", "spin_us"), Some("100"));
    config(&probe, &hurried, &spinning);
    let mut small = probe.clone();
    small.site.cores = 3;
    assert!(recommend(&small, &hurried).is_err(), "three cores have none to spare");
    let mut bounded = probe.clone();
    bounded.site.quota_cores = 1;
    assert!(recommend(&bounded, &hurried).is_err(), "nor has a quota of one");
    // One executor has nobody to wake.
    small.site.cores = 2;
    assert_eq!(value(&recommend(&small, &hurried).unwrap(), "cores", "spin_us"), None);
}

#[test]
fn whatever_is_asked_of_whatever_figures_the_answer_is_one_that_a_node_takes() {
    let mut answers = 0;
    for mut probe in [nvme(), slow_disk(), tmpfs()] {
        for (stall_us, size) in [(None, 1 << 40), (Some(5e6), 3 << 30), (Some(1e300), u64::MAX), (None, 0)] {
            if let Some(stall_us) = stall_us {
                probe.flush.iter_mut().for_each(|cell| cell.times.max_us = stall_us);
            }
            (probe.site.size, probe.site.available) = (size, size);
            let rates = [1, 100, 10_000, 1_000_000, 100_000_000];
            for (rate, size) in
                rates.into_iter().flat_map(|rate| [1, 1024, (4 << 20) + 1, 15 << 20].map(|size| (rate, size)))
            {
                for (p99_ms, loss_window_ms) in [0.1, 5.0, 3.6e6]
                    .into_iter()
                    .flat_map(|p99| [None, Some(0), Some(7), Some(600_000)].map(|loss| (p99, loss)))
                {
                    let request = Request { p99_ms, rate, size, loss_window_ms };
                    match recommend(&probe, &request) {
                        Ok(advice) => {
                            config(&probe, &request, &advice);
                            answers += 1;
                        }
                        Err(refusal) => {
                            assert!(!refusal.lines.is_empty());
                            assert!(!refusal.lines.iter().any(|line| line.contains("--rate 0 ")), "{refusal:?}");
                        }
                    }
                }
            }
        }
    }
    assert!(answers > 300, "{answers}");
}
