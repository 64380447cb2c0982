//! Pages of whole results, as files hold them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

/// A run of sends with 90 % of latencies at `p90_ms` and a tail above, everything else fixed.
pub fn result(label: &str, ms: f64) -> RunResult {
    serde_json::from_value(json_result(label, ms)).expect("it is a result")
}

fn json_result(label: &str, ms: f64) -> Value {
    let names = ["Avg", "50pct", "75pct", "95pct", "99pct", "999pct", "9999pct", "99999pct", "Max"];
    let mut fields = BTreeMap::new();
    for prefix in ["publishLatency", "publishDelayLatency", "endToEndLatency", "pullLatency"] {
        for name in names {
            let measured = prefix == "publishLatency";
            fields.insert(format!("{prefix}{name}"), if measured { json!([ms, ms * 2.0, ms]) } else { json!([]) });
        }
    }
    for name in names {
        fields.insert(format!("aggregatedPublishLatency{name}"), json!(ms));
        fields
            .insert(format!("aggregatedPublishDelayLatency{name}"), if name == "Avg" { json!(3.0) } else { json!(3) });
    }
    let curve = json!({"0.0": ms / 2.0, "50.0": ms, "90.0": ms, "99.0": ms, "99.9": ms * 2.0, "100.0": ms * 4.0});
    fields.insert("aggregatedPublishLatencyQuantiles".into(), curve);
    fields.insert("aggregatedPublishLatencyMax".into(), json!(ms * 4.0));
    fields.insert("aggregatedPublishDelayLatencyQuantiles".into(), json!({"50.0": 3}));
    let plan = json!({
        "label": label, "target": {"broker": "127.0.0.1:10911"}, "workload": "send", "pace": {"open": {"rate": "1000"}},
        "sizes": "1024", "topic": "T", "topics": 1, "queues": 8, "create": true, "connections": 8, "pullConnections": 1,
        "tags": 0, "keys": false, "uniqKey": true, "batch": 1, "header": "json", "warmupSeconds": 1.0,
        "extent": {"seconds": 3.0}, "threads": 1, "cores": [], "spin": false, "intervalSeconds": 1.0, "timeoutMs": 3000,
        "inFlightMax": 8192, "pullMessages": 32, "again": false, "check": false, "seed": 1
    });
    let machine = json!({
        "cpu": {"model": "A CPU", "online": 2, "usable": 2, "governor": null}, "kernel": "Linux 6.18",
        "memory": {"totalKib": 1048576, "availableKib": 524288, "swapKib": 0, "transparentHugePages": "madvise"},
        "virtualisation": "none seen", "loadAverage": "0.10 0.20 0.30", "storage": null,
        "generator": {"version": "0.1.0", "build": "release", "revision": "abc"},
        "broker": {"address": "127.0.0.1:10911", "version": "V5", "flush": "async", "commandLine": null, "cores": null,
            "settings": {}, "settingsFrom": null, "state": {}},
        "notFound": ["governor: this host has none"]
    });
    let mut all = json!({
        "version": "0.1.0", "label": label, "workload": "send", "driver": "127.0.0.1:10911",
        "beginTime": "2026-01-31T12:00:00.000Z", "endTime": "2026-01-31T12:00:03.000Z", "messageSize": 1024, "topics": 1,
        "partitions": 8, "producersPerTopic": 8, "consumersPerTopic": 0, "publishRate": [1000.0, 1000.0, 1000.0],
        "publishErrorRate": [0.0, 0.0, 0.0], "consumeRate": [], "backlog": [], "intervalSeconds": 1.0, "seconds": 3.0,
        "messages": 3000, "messagesWithWarmup": 4000, "consumed": 0, "consumedWithWarmup": 0, "errors": {}, "remarks": {},
        "rate": 1000.0, "consumedRate": 0.0, "behindMsMax": 0.5, "neverSent": 0, "cpuMicrosPerMessage": 2.5, "generatorCpuMicrosPerMessage": 0.5,
        "plan": plan, "machine": machine
    });
    let object = all.as_object_mut().expect("it is an object");
    object.extend(fields);
    all
}

fn runs(results: Vec<RunResult>) -> Vec<Run> {
    let run = |(colour, result): (usize, RunResult)| Run::new(result.label.clone(), colour, result).unwrap();
    results.into_iter().enumerate().map(run).collect()
}

fn with_flush(mut result: RunResult, flush: &str) -> RunResult {
    result.machine["broker"]["flush"] = json!(flush);
    result
}

#[test]
fn a_page_has_every_section_that_its_runs_give_cause_for() {
    let text = of_runs("Title", Markup::new(), &runs(vec![result("one", 1.0)]));
    for wanted in
        ["<h1>Title", "At a glance", "Send latency", "Over the time", "Rate over the time", "A CPU", "Not found"]
    {
        assert!(text.contains(wanted), "{wanted}");
    }
    for unwanted in ["End-to-end", "Pull latency", "Sync against async", "class=\"warnings\""] {
        assert!(!text.contains(unwanted), "{unwanted}");
    }
}

#[test]
fn the_page_fetches_nothing_and_has_no_script() {
    let text = of_runs("Title", Markup::new(), &runs(vec![result("one", 1.0), result("two", 2.0)]));
    for unwanted in ["<script", "<link", "http://", "https://", "url(", "@import", " src="] {
        assert!(!text.contains(unwanted), "{unwanted}");
    }
}

#[test]
fn text_of_a_result_cannot_become_markup() {
    let evil = "<img src=x onerror=alert(1)>";
    let mut result = result(evil, 1.0);
    result.errors.insert(evil.to_owned(), 3);
    result.remarks.insert(evil.to_owned(), evil.to_owned());
    result.plan.topic = evil.to_owned();
    result.begin_time = evil.to_owned();
    result.machine["broker"]["settings"][evil] = json!(evil);
    result.machine["kernel"] = json!(evil);
    result.machine["notFound"] = json!([evil]);
    let text = of_runs(evil, Markup::new(), &runs(vec![result]));
    assert!(!text.contains("<img"));
    assert!(text.matches("&lt;img src=x").count() > 10);
}

#[test]
fn what_was_never_sent_is_an_error_too() {
    let errors = |results| {
        let text = of_runs("Title", Markup::new(), &runs(results));
        text[text.find("<h2>Errors").unwrap()..].to_owned()
    };
    assert!(errors(vec![result("good", 1.0)]).contains("None: every message was sent"));
    let mut late = result("late", 1.0);
    late.never_sent = 1000;
    let text = errors(vec![result("good", 1.0), late]);
    assert!(!text.contains("None: every"), "{text}");
    // 3,000 were answered.
    for wanted in ["never sent", "1,000", "25.0000 %"] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
}

#[test]
fn what_makes_figures_doubtful_stands_at_the_top() {
    let mut bad = result("bad", 1.0);
    bad.errors.insert("2".into(), 7);
    bad.behind_ms_max = 50.0;
    bad.machine["generator"]["build"] = json!("debug");
    bad.machine["kernel"] = json!("another");
    bad.machine["loadAverage"] = json!("3.00 0.20 0.30");
    let mut late = result("late", 1.0);
    late.never_sent = 9;
    late.ended_early = Some("no connection".to_owned());
    let text = of_runs("Title", Markup::new(), &runs(vec![bad, late]));
    let warnings = &text[text.find("class=\"warnings\"").unwrap()..text.find("At a glance").unwrap()];
    for wanted in [
        "so the figures mean nothing: bad.",
        "bad (7)",
        "bad (50.0 ms",
        "other work",
        "late (9)",
        "late (no connection)",
        "kernel",
    ] {
        assert!(warnings.contains(wanted), "{wanted} in {warnings}");
    }
}

#[test]
fn sync_and_async_runs_are_set_against_each_other() {
    let pairs = vec![
        with_flush(result("java async", 1.0), "async"),
        with_flush(result("java sync", 4.0), "sync"),
        with_flush(result("ours async", 1.0), "async"),
        with_flush(result("ours sync", 2.0), "sync"),
    ];
    let text = of_runs("Title", Markup::new(), &runs(pairs));
    let part = &text[text.find("<h2>Sync against async").unwrap()..text.find("<h2>Errors").unwrap()];
    assert!(part.contains("java sync / java async</th><td>×1.00</td><td>×4.00</td>"), "{part}");
    assert!(part.contains("ours sync / ours async</th><td>×1.00</td><td>×2.00</td>"), "{part}");
}

#[test]
fn the_latency_at_a_percentile_is_that_of_the_next_point() {
    let total = result("x", 1.0).aggregated_publish_latency.unwrap();
    let found = [50.0, 99.0, 99.5, 99.9, 99.99, 100.0].map(|wanted| at(&total, wanted));
    assert_eq!(found, [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
}

#[test]
fn runs_of_one_name_get_numbers() {
    let mut all = runs(vec![result("x", 1.0), result("y", 1.0), result("x", 1.0)]);
    name_apart(&mut all);
    assert_eq!(all.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["x (1)", "y", "x (2)"]);
}

#[test]
fn a_file_that_is_no_result_or_lacks_its_machine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    let mut value = json_result("x", 1.0);
    value["machine"] = Value::Null;
    for (text, code, wanted) in [
        (None, 1, "No such file"),
        (Some("{}".to_owned()), 2, "no result"),
        (Some(value.to_string()), 2, "no machine block"),
    ] {
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let Err((found, why)) = read(&path, 0) else { panic!("{wanted}: it was taken") };
        assert!(found == code && why.contains(wanted), "{found}: {why}");
    }
    fs::write(&path, json_result("", 1.0).to_string()).unwrap();
    assert!(read(&path, 0).is_ok_and(|runs| runs.len() == 1 && runs[0].name == "r"));
}

#[test]
fn the_runs_of_comparisons_ladders_and_soaks_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    let one = |label: &str| json_result(label, 1.0);
    for (value, names) in [
        (json!({"a": [one("a")], "b": [one("b")], "rows": []}), vec!["a", "b"]),
        (
            json!({"steps": [{"result": one("x")}, {"result": one("y")}], "tries": [{"result": one("z")}]}),
            vec!["x", "y"],
        ),
        (json!({"minutes": [], "result": one("soak")}), vec!["soak"]),
    ] {
        fs::write(&path, value.to_string()).unwrap();
        let runs = read(&path, 3).map_err(|(_, why)| why).unwrap();
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), names);
        assert!(runs.iter().enumerate().all(|(index, run)| run.colour == index + 3));
    }
}

#[test]
fn a_legend_names_no_run_that_has_nothing_to_show() {
    let with_end_to_end = |label: &str, ms: [f64; 3]| {
        let mut result = result(label, 1.0);
        result.end_to_end_latency.p50 = ms.to_vec();
        result.end_to_end_latency.p99 = ms.to_vec();
        result.end_to_end_latency.max = ms.to_vec();
        result
    };
    // A run that only sends has an interval's latency of nothing, 0, for each of its intervals.
    let runs = runs(vec![with_end_to_end("sends only", [0.0; 3]), with_end_to_end("reads too", [1.0, 2.0, 1.0])]);
    let mut page = Markup::new();
    super::series::latencies(&mut page, Kind::EndToEnd, &runs);
    let text = page.finish();
    assert!(text.contains("reads too") && !text.contains("sends only"), "{text}");
}
