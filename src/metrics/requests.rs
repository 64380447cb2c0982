//! How long requests take from their arrival to their answer, by request and response code.
//!
//! One core counts, any reads. The names are those of Java's brokers (the constants' own, in lower case). Source: RocketMQ 5.x
//! `RequestCode.java`, `ResponseCode.java`, `RemotingMetricsManager.java`.

use super::owned::{ClassTotals, Classes};

/// Upper ends in µs, inclusive, of the classes of request times.
pub const REQUEST_ENDS_US: [u64; 9] = [1_000, 3_000, 5_000, 7_000, 10_000, 100_000, 1_000_000, 2_000_000, 3_000_000];

/// Request codes with their names; any other is counted as the last.
const REQUESTS: [(i32, &str); 39] = [
    (10, "send_message"),
    (11, "pull_message"),
    (12, "query_message"),
    (14, "query_consumer_offset"),
    (15, "update_consumer_offset"),
    (17, "update_and_create_topic"),
    (28, "get_broker_runtime_info"),
    (29, "search_offset_by_timestamp"),
    (30, "get_max_offset"),
    (31, "get_min_offset"),
    (32, "get_earliest_msg_storetime"),
    (33, "view_message_by_id"),
    (34, "heart_beat"),
    (35, "unregister_client"),
    (36, "consumer_send_msg_back"),
    (38, "get_consumer_list_by_group"),
    (41, "lock_batch_mq"),
    (42, "unlock_batch_mq"),
    (46, "check_client_config"),
    (100, "put_kv_config"),
    (101, "get_kv_config"),
    (102, "delete_kv_config"),
    (103, "register_broker"),
    (104, "unregister_broker"),
    (105, "get_routeinfo_by_topic"),
    (106, "get_broker_cluster_info"),
    (206, "get_all_topic_list_from_nameserver"),
    (215, "delete_topic_in_broker"),
    (216, "delete_topic_in_namesrv"),
    (219, "get_kvlist_by_namespace"),
    (306, "clean_expired_consumequeue"),
    (310, "send_message_v2"),
    (320, "send_batch_message"),
    (329, "delete_expired_commitlog"),
    (351, "get_topic_config"),
    (352, "get_subscriptiongroup_config"),
    (361, "lite_pull_message"),
    (904, "broker_heartbeat"),
    (-1, "other"),
];

/// Response codes likewise.
const RESPONSES: [(i32, &str); 27] = [
    (0, "success"),
    (1, "system_error"),
    (2, "system_busy"),
    (3, "request_code_not_supported"),
    (10, "flush_disk_timeout"),
    (11, "slave_not_available"),
    (12, "flush_slave_timeout"),
    (13, "message_illegal"),
    (14, "service_not_available"),
    (15, "version_not_supported"),
    (16, "no_permission"),
    (17, "topic_not_exist"),
    (18, "topic_exist_already"),
    (19, "pull_not_found"),
    (20, "pull_retry_immediately"),
    (21, "pull_offset_moved"),
    (22, "query_not_found"),
    (23, "subscription_parse_failed"),
    (24, "subscription_not_exist"),
    (25, "subscription_not_latest"),
    (26, "subscription_group_not_exist"),
    (27, "filter_data_not_exist"),
    (28, "filter_data_not_latest"),
    (29, "invalid_parameter"),
    (206, "consumer_not_online"),
    (215, "flow_control"),
    (-1, "other"),
];

/// Codes at and above it are not looked up.
const CODES_END: usize = 1024;
const ROWS: [u8; CODES_END] = places(&REQUESTS);
const COLUMNS: [u8; CODES_END] = places(&RESPONSES);

/// By code its place in the table; the last one for codes that are not in it.
const fn places<const N: usize>(table: &[(i32, &str); N]) -> [u8; CODES_END] {
    let mut places = [(N - 1) as u8; CODES_END];
    let mut at = 0;
    while at + 1 < N {
        places[table[at].0 as usize] = at as u8;
        at += 1;
    }
    places
}

fn place(places: &[u8; CODES_END], code: i32, last: usize) -> usize {
    usize::try_from(code).ok().and_then(|code| places.get(code)).map_or(last, |place| usize::from(*place))
}

/// The name of a request code.
pub fn request_name(code: i32) -> &'static str {
    REQUESTS[place(&ROWS, code, REQUESTS.len() - 1)].1
}

/// The name of a response code.
pub fn response_name(code: i32) -> &'static str {
    RESPONSES[place(&COLUMNS, code, RESPONSES.len() - 1)].1
}

type RequestTimes = Classes<{ REQUEST_ENDS_US.len() }>;

/// Lives where one core writes it.
#[derive(Debug)]
pub struct Requests {
    /// A row for each request, then one for each that was held; a column for each response.
    cells: Box<[RequestTimes]>,
}

/// What one kind of request with one kind of answer has taken.
#[derive(Clone, Debug)]
pub struct RequestTotals {
    pub request: &'static str,
    pub response: &'static str,
    /// It was kept waiting for messages, as its client asked.
    pub is_held: bool,
    pub times: ClassTotals,
}

impl Default for Requests {
    fn default() -> Requests {
        let cells = 2 * REQUESTS.len() * RESPONSES.len();
        Requests { cells: (0..cells).map(|_| Classes::new(&REQUEST_ENDS_US)).collect() }
    }
}

impl Requests {
    /// Notes an answer, `took_us` after its request arrived.
    pub fn note(&self, request: i32, response: i32, is_held: bool, took_us: u64) {
        let row = place(&ROWS, request, REQUESTS.len() - 1) + if is_held { REQUESTS.len() } else { 0 };
        let column = place(&COLUMNS, response, RESPONSES.len() - 1);
        self.cells[row * RESPONSES.len() + column].add(took_us, 1);
    }

    /// The sum of several cores', of what there was at all.
    pub fn totals<'a>(all: impl Iterator<Item = &'a Requests> + Clone) -> Vec<RequestTotals> {
        let mut totals = Vec::new();
        for at in 0..2 * REQUESTS.len() * RESPONSES.len() {
            let mut cells = all.clone().map(|requests| &requests.cells[at]).filter(|times| !times.is_empty());
            if let Some(first) = cells.next() {
                let mut times = first.totals();
                cells.for_each(|more| times.add(&more.totals()));
                let (row, column) = (at / RESPONSES.len(), at % RESPONSES.len());
                totals.push(RequestTotals {
                    request: REQUESTS[row % REQUESTS.len()].1,
                    response: RESPONSES[column].1,
                    is_held: row >= REQUESTS.len(),
                    times,
                });
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_java_and_unknown_ones_share_one() {
        assert_eq!([310, 11, 904].map(request_name), ["send_message_v2", "pull_message", "broker_heartbeat"]);
        assert_eq!([5, -1, 1023, 1024, i32::MAX, i32::MIN].map(request_name), ["other"; 6]);
        assert_eq!([0, 2, 215, 99].map(response_name), ["success", "system_busy", "flow_control", "other"]);
    }

    /// A code that is new in `wire` needs a name here.
    #[test]
    fn every_code_of_the_protocol_has_its_name() {
        let source = include_str!("../wire/code.rs");
        let (requests, responses) = source.split_once("pub mod response").unwrap();
        let codes = |text: &'static str| {
            text.lines().filter_map(|line| {
                let (name, rest) = line.trim().strip_prefix("pub const ")?.split_once(": i32 = ")?;
                Some((name.to_lowercase(), rest.trim_end_matches(';').parse::<i32>().ok()?))
            })
        };
        let mut count = 0;
        // The one that the broker sends to clients.
        for (name, code) in codes(requests).filter(|(name, _)| name != "notify_consumer_ids_changed") {
            assert_eq!(request_name(code), name);
            count += 1;
        }
        assert_eq!(count, REQUESTS.len() - 1);
        for (name, code) in codes(responses) {
            assert_eq!(response_name(code), name);
            count += 1;
        }
        assert_eq!(count, REQUESTS.len() + RESPONSES.len() - 2);
    }

    #[test]
    fn answers_are_counted_by_request_response_and_whether_they_were_held() {
        let (one, two) = (Requests::default(), Requests::default());
        one.note(310, 0, false, 900);
        two.note(310, 0, false, 4_000_000);
        two.note(11, 19, true, 15_000_000);
        two.note(7777, 7777, false, 1);
        let totals = Requests::totals([&one, &two].into_iter());
        let shown: Vec<_> = totals.iter().map(|of| (of.request, of.response, of.is_held, of.times.count())).collect();
        assert_eq!(
            shown,
            [
                ("send_message_v2", "success", false, 2),
                ("other", "other", false, 1),
                ("pull_message", "pull_not_found", true, 1),
            ]
        );
        assert_eq!((totals[0].times.counts[0], totals[0].times.counts[9], totals[0].times.sum), (1, 1, 4_000_900));
    }
}
