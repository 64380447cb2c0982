//! What a broker says of itself (28), as the tools that read it take it apart; and `kerolox status`. Case T19.

mod harness;

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::KvTable;

type Table = BTreeMap<String, String>;

/// All of remoting.md 3.12 but those that name a path or a level.
const KEYS: &str = "brokerVersionDesc brokerVersion putTps getTotalTps getFoundTps getMissTps getTransferedTps \
    getTransferredTps commitLogDirCapacity putMessageDistributeTime remainHowManyDataToFlush remainHowManyDataToCommit \
    msgPutTotalTodayNow msgPutTotalTodayMorning msgPutTotalYesterdayMorning msgGetTotalTodayNow msgGetTotalTodayMorning \
    msgGetTotalYesterdayMorning sendThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills \
    sendThreadPoolQueueCapacity pullThreadPoolQueueSize pullThreadPoolQueueHeadWaitTimeMills \
    pullThreadPoolQueueCapacity queryThreadPoolQueueSize queryThreadPoolQueueHeadWaitTimeMills \
    queryThreadPoolQueueCapacity litePullThreadPoolQueueSize litePullThreadPoolQueueHeadWaitTimeMills \
    litePullThreadPoolQueueCapacity ackThreadPoolQueueSize ackThreadPoolQueueHeadWaitTimeMills \
    ackThreadPoolQueueCapacity EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity pageCacheLockTimeMills \
    earliestMessageTimeStamp startAcceptSendRequestTimeStamp bootTimestamp commitLogDiskRatio consumeQueueDiskRatio \
    commitLogMinOffset commitLogMaxOffset dispatchBehindBytes dispatchMaxBuffer putMessageTimesTotal \
    putMessageSizeTotal putMessageAverageSize putMessageEntireTimeMax getMessageEntireTimeMax putMessageFailedTimes \
    putLatency99 putLatency999 remainTransientStoreBufferNumbs runtime brokerActive timerReadBehind timerOffsetBehind \
    timerCongestNum timerEnqueueTps timerDequeueTps keroloxHealth keroloxHealthReason keroloxFlushMode \
    keroloxAppendMode keroloxSyncCall keroloxVersion \
    keroloxFlushedOffset keroloxUnflushedBytes keroloxUnflushedMs";

fn runtime_info(client: &mut Client) -> Table {
    let answer = client.ask(&Request::new(request::GET_BROKER_RUNTIME_INFO));
    assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
    KvTable::decode(&answer.body).expect("a table of texts").table
}

fn number(table: &Table, key: &str) -> f64 {
    table[key].parse().unwrap_or_else(|_| panic!("{key} is no number: {:?}", table[key]))
}

/// The three numbers of a rate, as the Dashboard splits them.
fn rates(table: &Table, key: &str) -> [f64; 3] {
    let numbers: Vec<f64> = table[key].split(' ').map(|word| word.parse().expect("a number")).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{key} has not three numbers: {:?}", table[key]))
}

/// Reads the table as the exporter does: every key that it wants, by the positions of words in it.
fn read_as_exporter(table: &Table, root: &str) {
    let keys: Vec<&str> = KEYS.split_whitespace().collect();
    let missing: Vec<_> = keys.iter().filter(|key| !table.contains_key(**key)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let texts = ["brokerVersionDesc", "commitLogDirCapacity", "putMessageDistributeTime", "runtime", "brokerActive"];
    let ours = [
        "keroloxHealth",
        "keroloxHealthReason",
        "keroloxFlushMode",
        "keroloxAppendMode",
        "keroloxSyncCall",
        "keroloxVersion",
    ];
    let lens = ["remainHowManyDataToFlush", "remainHowManyDataToCommit"];
    for key in keys {
        if key.ends_with("Tps") && !key.starts_with("timer") {
            rates(table, key);
        } else if !texts.contains(&key) && !ours.contains(&key) && !lens.contains(&key) {
            number(table, key);
        }
    }
    for key in lens {
        table[key].split(' ').next().unwrap().parse::<f64>().expect("a number first");
    }
    let words: Vec<&str> = table["commitLogDirCapacity"].split(' ').collect();
    let [total, unit, free, free_unit] = [words[2], words[3], words[6], words[7]];
    assert!(total.parse::<f64>().unwrap() > 0.0 && free.parse::<f64>().is_ok(), "{words:?}");
    assert!(unit.ends_with("B,") && free_unit.ends_with("B."), "{words:?}");
    let classes: Vec<(&str, u64)> = table["putMessageDistributeTime"]
        .split_whitespace()
        .map(|class| class.split_once(':').expect("[class]:count"))
        .map(|(class, count)| (class, count.parse().expect("a count")))
        .collect();
    let names: Vec<_> = classes.iter().map(|(name, _)| *name).collect();
    let expected = "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] [3~4s] \
        [4~5s] [5~10s] [10s~]";
    assert_eq!(names.join(" "), expected);
    assert_eq!(table["putMessageTimesTotal"], classes.iter().map(|(_, count)| count).sum::<u64>().to_string());
    assert!(table.contains_key(&format!("commitLogDiskRatio_{root}/commitlog")), "{table:?}");
    let ratio = number(table, "commitLogDiskRatio");
    assert!((0.0..=1.0).contains(&ratio), "{ratio}");
    for level in 1..=18 {
        let (done, max) = table[&format!("scheduleMessageOffset_{level}")].split_once(',').expect("done,max");
        assert!(done.parse::<u64>().unwrap() <= max.parse().unwrap());
    }
}

#[test]
fn an_idle_node_tells_every_key_in_the_form_that_tools_take_apart() {
    let node = Node::start();
    let root = node.root().display().to_string();
    for header_type in HEADER_TYPES {
        let table = runtime_info(&mut node.client(header_type));
        read_as_exporter(&table, &root);
        let told = |key: &str| table[key].as_str();
        assert_eq!((told("brokerVersionDesc"), told("brokerVersion")), ("V5_3_3", "479"));
        assert_eq!((told("putTps"), told("getTotalTps")), ("0.0 0.0 0.0", "0.0 0.0 0.0"));
        assert_eq!((told("remainHowManyDataToFlush"), told("keroloxUnflushedMs")), ("0 B", "0"));
        assert_eq!((told("commitLogMinOffset"), told("commitLogMaxOffset")), ("0", "0"));
        assert_eq!((told("earliestMessageTimeStamp"), told("putMessageAverageSize")), ("-1", "0.0"));
        assert_eq!((told("keroloxHealth"), told("brokerActive"), told("keroloxFlushMode")), ("ok", "true", "async"));
        assert!(told("runtime").starts_with("[ 0 days, 0 hours, "), "{}", told("runtime"));
    }
}

#[test]
fn an_older_profile_says_its_own_version() {
    let node = Node::with(&[("broker.profile", "\"4.9\"")]);
    let table = runtime_info(&mut node.client(HEADER_TYPES[0]));
    assert_eq!((table["brokerVersionDesc"].as_str(), table["brokerVersion"].as_str()), ("V4_9_8", "409"));
}

#[test]
fn a_loaded_node_tells_what_it_did() {
    const COUNT: u64 = 300;
    let node = Node::with(&[("flush.least_pages", "262144"), ("flush.thorough_interval_ms", "600000")]);
    let root = node.root().display().to_string();
    let mut client = node.client(HEADER_TYPES[0]);
    for index in 0..COUNT {
        let asked = Request::send("Loaded").body(index.to_string());
        client.put(&if index == 7 { asked.properties("DELAY=18") } else { asked });
    }
    assert_eq!(client.ask(&Request::send("Loaded").body("")).code, response::MESSAGE_ILLEGAL);
    let mut pulled = 0;
    while pulled < COUNT as usize - 1 {
        pulled += client.pull_until("Loaded", pulled as i64, 1).records().len();
    }
    let table = runtime_info(&mut client);
    read_as_exporter(&table, &root);
    assert_eq!(number(&table, "putMessageTimesTotal"), COUNT as f64);
    assert_eq!(number(&table, "msgPutTotalTodayNow"), COUNT as f64);
    assert_eq!(number(&table, "msgGetTotalTodayNow"), (COUNT - 1) as f64);
    let log_len = number(&table, "commitLogMaxOffset");
    assert_eq!(number(&table, "putMessageSizeTotal"), log_len);
    assert!((number(&table, "putMessageAverageSize") - log_len / COUNT as f64).abs() < 0.01);
    assert!(number(&table, "putLatency99") > 0.0 && number(&table, "putLatency99") <= number(&table, "putLatency999"));
    assert_eq!(table["scheduleMessageOffset_18"], "0,1");
    assert!(number(&table, "earliestMessageTimeStamp") >= number(&table, "bootTimestamp"));
    for key in ["putTps", "getFoundTps", "getTotalTps", "getTransferedTps", "getTransferredTps"] {
        // Of the longest window: a slow machine may be through with the others.
        assert!(rates(&table, key)[2] > 0.0, "{key}: {}", table[key]);
    }
    assert_eq!(table["getTransferedTps"], table["getTransferredTps"]);
    // Nothing has been flushed yet.
    assert_eq!(number(&table, "keroloxUnflushedBytes"), log_len);
    assert!(table["remainHowManyDataToFlush"].ends_with(" KiB"), "{}", table["remainHowManyDataToFlush"]);
    let age = number(&table, "keroloxUnflushedMs");
    thread::sleep(Duration::from_millis(50));
    let later = runtime_info(&mut client);
    assert!(number(&later, "keroloxUnflushedMs") >= age + 50.0, "{age} {later:?}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while number(&runtime_info(&mut client), "dispatchBehindBytes") > 0.0 {
        assert!(Instant::now() < deadline, "not all is dispatched");
    }
}

#[test]
fn on_a_sync_node_nothing_is_at_risk_once_it_is_answered() {
    let node = Node::with(&[("flush.mode", "\"sync\"")]);
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send("Safe"));
    let table = runtime_info(&mut client);
    assert_eq!((table["keroloxFlushMode"].as_str(), table["keroloxUnflushedBytes"].as_str()), ("sync", "0"));
    assert_eq!(table["keroloxFlushedOffset"], table["commitLogMaxOffset"]);
    assert_eq!(table["keroloxConfirmOffset"], table["commitLogMaxOffset"]);
}

#[test]
fn it_tells_how_messages_reach_the_disk() {
    // Of an async node no write waits for the device.
    let node = Node::with(&[("flush.sync_call", "\"o_dsync\"")]);
    assert_eq!(runtime_info(&mut node.client(HEADER_TYPES[0]))["keroloxSyncCall"], "fdatasync");
    for (append, sync_call) in
        [("buffered", "fdatasync"), ("buffered", "o_dsync"), ("mmap", "fdatasync"), ("dma", "o_dsync")]
    {
        let (mode, call) = (format!("\"{append}\""), format!("\"{sync_call}\""));
        let settings =
            [("flush.mode", "\"sync\""), ("store.append", mode.as_str()), ("flush.sync_call", call.as_str())];
        let node = Node::with(&settings);
        let table = runtime_info(&mut node.client(HEADER_TYPES[0]));
        assert_eq!((table["keroloxAppendMode"].as_str(), table["keroloxSyncCall"].as_str()), (append, sync_call));
        assert_eq!(table["keroloxVersion"], env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn oneway_gets_no_answer_and_every_shard_answers() {
    let node = Node::start();
    for _ in 0..4 {
        let mut client = node.client(HEADER_TYPES[0]);
        client.send(&Request::new(request::GET_BROKER_RUNTIME_INFO).oneway());
        runtime_info(&mut client);
    }
}

#[test]
fn status_shows_it_to_people_and_scripts() {
    let node = Node::start();
    node.client(HEADER_TYPES[0]).put(&Request::send("Shown"));
    let status = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox"));
        let output = program.args(["status", "--addr", &node.broker.to_string()]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = status(&[]);
    let first: Vec<_> =
        shown.lines().take(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(first[..2], ["health ok", "flush mode async"], "{shown}");
    assert!(first[2].starts_with("at risk "), "{shown}");
    assert!(shown.contains("puts                 1, failed 0"), "{shown}");
    assert!(shown.contains("append, sync call    buffered, "), "{shown}");
    let told: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(told["putMessageTimesTotal"], "1");
}
