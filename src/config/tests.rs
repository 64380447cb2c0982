use std::collections::BTreeMap;

use super::*;

const DOCUMENTED: &str = include_str!("../../docs/kerolox.toml");

fn read(text: &str) -> Result<Config, ConfigErrors> {
    Config::from_text(Path::new("k.toml"), text, Overrides::default())
}

/// The single line of complaint about `text`.
fn complaint(text: &str) -> String {
    let errors = read(text).expect_err(text);
    assert_eq!(errors.lines().len(), 1, "{errors}");
    errors.lines()[0].clone()
}

fn setting<'a>(config: &'a Config, key: &str) -> &'a Setting {
    config.settings().iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("no setting {key}"))
}

#[test]
fn the_documented_file_names_every_setting_with_its_default() {
    let documented = read(DOCUMENTED).unwrap();
    let defaults = Config::defaults();
    for (documented, default) in documented.settings().iter().zip(defaults.settings()) {
        assert!(matches!(documented.source, Source::File { .. }), "{} is missing in docs/kerolox.toml", default.key);
        assert_eq!((documented.key, &documented.value), (default.key, &default.value));
    }
    assert_eq!(documented.settings().len(), defaults.settings().len());
}

#[test]
fn every_documented_setting_stands_below_an_explanation() {
    let lines: Vec<_> = DOCUMENTED.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#')) {
        assert!(lines[at - 1].starts_with("# "), "docs/kerolox.toml:{}: {line} has no comment above it", at + 1);
    }
}

#[test]
fn the_defaults_are_those_that_others_rely_on() {
    let config = Config::defaults();
    assert_eq!(config.broker.name, "broker-a");
    assert_eq!(config.broker.profile, Profile::V5);
    assert_eq!(config.net.listen.to_string(), "127.0.0.1:10911");
    assert_eq!(config.net.vip_listen().unwrap().to_string(), "127.0.0.1:10909");
    assert_eq!(config.net.advertised().unwrap().to_string(), "127.0.0.1");
    assert_eq!(config.nameserver.embedded.unwrap().to_string(), "127.0.0.1:9876");
    assert_eq!((config.cores.writer, &config.cores.shards), (None, &None));
    assert_eq!(config.store.commitlog_file_size, 1 << 30);
    assert_eq!(config.flush.mode, FlushMode::Async);
    assert_eq!(config.limits.max_message_size, 4 << 20);
    assert_eq!(config.limits.delay_levels_ms.len(), 18);
    assert_eq!(config.limits.delay_levels_ms[17], 7_200_000);
    assert!(config.settings().iter().all(|setting| setting.source == Source::Default));
}

#[test]
fn what_is_printed_reads_back_as_the_same_settings() {
    let text = "[net]\nadvertise = \"10.1.2.3\"\n[cores]\nwriter = 0\nshards = [1, 3]\n[nameserver]\nembedded = \"off\"\n\
                register = [\"ns:9876\"]\n[limits]\nmax_message_size = 1000000\n[broker]\nprofile = \"4.9\"\n";
    let config = read(text).unwrap();
    let printed: String = config.settings().iter().map(|setting| format!("{setting}\n")).collect();
    let again = read(&printed).unwrap();
    let values = |config: &Config| -> BTreeMap<_, _> {
        config.settings().iter().map(|setting| (setting.key, setting.value.clone())).collect()
    };
    assert_eq!(values(&again), values(&config));
    assert!(printed.contains("# k.toml:5\n"), "{printed}");
}

#[test]
fn unknown_keys_and_sections_are_refused_with_their_line() {
    let line = complaint("[flush]\nmode = \"sync\"\nintervall_ms = 5\n");
    assert!(line.starts_with("k.toml:3: ") && line.contains("\"intervall_ms\"") && line.contains("[flush]"), "{line}");
    assert!(line.contains("\"interval_ms\""), "the known keys are named: {line}");
    let line = complaint("\n[flsh]\nmode = \"sync\"\n");
    assert!(line.starts_with("k.toml:2: ") && line.contains("\"flsh\""), "{line}");
}

#[test]
fn text_that_is_no_toml_is_refused_with_its_line() {
    assert!(complaint("[net]\nlisten = \n").starts_with("k.toml:2: "));
    assert!(complaint("[net]\nvip = true\nvip = false\n").starts_with("k.toml:3: "));
}

#[test]
fn a_bad_value_is_named_with_file_line_key_value_and_range() {
    let line = complaint("[flush]\n\nsync_timeout_ms = 5000\n");
    assert_eq!(
        line,
        "k.toml:3: flush.sync_timeout_ms = 5000 must be a whole number from 1 to 2899; leave the line out for the default 2500"
    );
}

#[test]
fn waits_that_add_up_to_more_than_clients_wait_are_refused() {
    let line = complaint("[flush]\nsync_timeout_ms = 2800\n[limits]\nput_wait_ms = 101\n");
    assert_eq!(
        line,
        "k.toml:2: flush.sync_timeout_ms = 2800 with limits.put_wait_ms = 101 are together 2901 ms, and clients give up after \
         3 s and send again; lower either, to 2900 ms in all"
    );
    let line = complaint("limits.put_wait_ms = 401");
    assert!(line.contains("flush.sync_timeout_ms = 2500 with limits.put_wait_ms = 401 are together 2901 ms"), "{line}");
    for fine in [
        "limits.put_wait_ms = 400",
        "flush.sync_timeout_ms = 2700",
        "flush.sync_timeout_ms = 1\nlimits.put_wait_ms = 2899",
    ] {
        read(fine).unwrap_or_else(|errors| panic!("{fine}: {errors}"));
    }
}

#[test]
fn values_of_the_wrong_kind_or_out_of_range_are_refused() {
    for text in [
        "broker.name = \"\"",
        "broker.name = \"a b\"",
        "broker.id = 1",
        "broker.profile = 5",
        "broker.profile = \"6\"",
        "net.listen = \"10911\"",
        "net.listen = \"127.0.0.1:0\"",
        "net.listen = \"127.0.0.1:2\"",
        "net.advertise = \"0.0.0.0\"",
        "net.advertise = \"localhost\"",
        "net.vip = \"yes\"",
        "nameserver.embedded = \"on\"",
        "nameserver.embedded = \"0.0.0.0:10911\"",
        "nameserver.embedded = \"127.0.0.1:10909\"",
        "nameserver.register = \"a:9876\"",
        "nameserver.register = [\"a\"]",
        "cores.writer = -1",
        "cores.writer = 1024",
        "cores.shards = []",
        "cores.shards = [1, 1]",
        "cores.spin_us = 20000",
        "store.root = \"\"",
        "store.append = \"direct\"",
        "store.commitlog_file_size = 5000000",
        "store.commitlog_file_size = \"4MiB\"",
        "store.consumequeue_file_size = \"6MB\"",
        "store.index_entries = 100000000\nstore.index_slots = 500000000",
        "store.zero_ahead = true",
        "flush.mode = \"SYNC_FLUSH\"",
        "flush.sync_call = \"fsync\"",
        "flush.sync_call = \"O_DSYNC\"",
        "flush.interval_ms = 0",
        "flush.interval_ms = 1.5",
        "limits.max_message_size = \"16MiB\"",
        "limits.max_message_size = -1",
        "limits.put_inflight_bytes = \"1MiB\"",
        "limits.delay_levels = \"\"",
        "limits.delay_levels = \"1s 5\"",
        "limits.delay_levels = \"0s\"",
        "limits.delay_levels = \"1ä\"",
        "log.level = \"loud\"",
        "log.level = \"info,=debug\"",
        "log.level = \"info, kerolox=debug\"",
        "log.format = \"xml\"",
    ] {
        let line = complaint(text);
        assert!(line.starts_with("k.toml:"), "{line}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let errors = read("[flush]\nmode = \"soon\"\ninterval_ms = 0\n[log]\nlevel = \"loud\"\n").unwrap_err();
    let places: Vec<_> = errors.lines().iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["k.toml:2", "k.toml:3", "k.toml:5"]);
}

#[test]
fn flags_beat_the_file_and_the_file_beats_the_default() {
    let mut flags = Overrides::default();
    flags.set("net.listen", "--listen", "0.0.0.0:20911");
    flags.set_cores("--cores", "0,2-3").unwrap();
    let text = "[net]\nlisten = \"127.0.0.1:30911\"\n[flush]\nmode = \"sync\"\n";
    let config = Config::from_text(Path::new("k.toml"), text, flags).unwrap();
    assert_eq!(config.net.listen.to_string(), "0.0.0.0:20911");
    assert_eq!(config.net.advertised(), None);
    assert_eq!(setting(&config, "net.listen").source, Source::Flag("--listen"));
    assert_eq!((config.cores.writer, config.cores.shards.as_deref()), (Some(0), Some([2, 3].as_slice())));
    assert_eq!(setting(&config, "cores.shards").source, Source::Flag("--cores"));
    assert!(config.flush.mode.is_sync());
    assert_eq!(setting(&config, "flush.mode").source.to_string(), "k.toml:4");
    assert_eq!(setting(&config, "flush.interval_ms").source, Source::Default);
}

#[test]
fn a_bad_flag_is_named_as_such() {
    let mut flags = Overrides::default();
    flags.set("net.listen", "--listen", "nowhere");
    let errors = Config::load(None, flags).unwrap_err();
    assert!(errors.lines()[0].starts_with("--listen: net.listen = \"nowhere\" is no address"), "{errors}");
    for list in ["", "a", "3-1", "0,", "2000", "0--1"] {
        assert!(Overrides::default().set_cores("--cores", list).is_err(), "{list}");
    }
}

#[test]
fn one_core_takes_every_role() {
    let mut flags = Overrides::default();
    flags.set_cores("--cores", "3").unwrap();
    let config = Config::load(None, flags).unwrap();
    assert_eq!((config.cores.writer, config.cores.shards), (Some(3), Some(vec![3])));
}

#[test]
fn sizes_come_as_numbers_or_texts_and_queue_files_hold_whole_units() {
    let config = read("[store]\ncommitlog_file_size = 16777216\nconsumequeue_file_size = \"1KiB\"\n").unwrap();
    assert_eq!(config.store.commitlog_file_size, 16 << 20);
    assert_eq!(config.store.consumequeue_file_size, 1040);
    assert_eq!(setting(&config, "store.commitlog_file_size").value, "\"16MiB\"");
    assert_eq!(setting(&config, "store.consumequeue_file_size").value, "1040");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let errors = Config::load(Some(Path::new("/nowhere/k.toml")), Overrides::default()).unwrap_err();
    assert!(errors.lines()[0].starts_with("/nowhere/k.toml: cannot be read"), "{errors}");
}

#[test]
fn a_mapped_log_takes_only_the_sync_call_that_covers_it() {
    let line = complaint("store.append = \"mmap\"\nflush.sync_call = \"o_dsync\"");
    assert!(line.starts_with("k.toml:1: store.append = \"mmap\" with flush.sync_call = \"o_dsync\" cannot"), "{line}");
    for call in ["auto", "fdatasync"] {
        assert!(read(&format!("store.append = \"mmap\"\nflush.sync_call = \"{call}\"")).is_ok(), "{call}");
    }
    for mode in ["buffered", "dma"] {
        assert!(read(&format!("store.append = \"{mode}\"\nflush.sync_call = \"o_dsync\"")).is_ok(), "{mode}");
    }
}

#[test]
fn disk_levels_outside_javas_ranges_are_refused_with_the_range() {
    for (key, value, range) in [
        ("warning_percent", 98, "from 35 to 90"),
        ("warning_percent", 34, "from 35 to 90"),
        ("clean_percent", 86, "from 30 to 85"),
        ("max_used_percent", 9, "from 10 to 95"),
    ] {
        let line = complaint(&format!("[disk]\n{key} = {value}\n"));
        assert!(line.starts_with("k.toml:2: ") && line.contains(key) && line.contains(range), "{line}");
    }
    let line = complaint("[disk]\nwarning_percent = 40\n");
    assert!(line.contains("disk.clean_percent = 85 with disk.warning_percent = 40"), "{line}");
    let line = complaint("[disk]\nmin_free_clean = \"1GiB\"\nmin_free_warning = \"2GiB\"\n");
    assert!(line.contains("before anything is cleaned"), "{line}");
    let disk = read("[disk]\nwarning_percent = 90\nmin_free_warning = \"1GiB\"\n").unwrap().disk;
    assert_eq!((disk.warning_percent, disk.min_free_warning), (90, 1 << 30));
}

#[test]
fn hours_of_deletion_are_javas_list() {
    let hours = |text: &str| read(&format!("[retention]\ndelete_when = {text:?}\n")).unwrap().retention.delete_hours;
    assert_eq!(Config::defaults().retention.delete_hours, 1 << 4);
    assert_eq!(hours("0;23"), 1 | 1 << 23);
    assert_eq!(hours(" 4 ; 04"), 1 << 4);
    for wrong in ["", "24", "4;", "-1", "4,5", "noon"] {
        let line = complaint(&format!("[retention]\ndelete_when = {wrong:?}\n"));
        assert!(line.contains("from 0 to 23"), "{wrong}: {line}");
    }
}
