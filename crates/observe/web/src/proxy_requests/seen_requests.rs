//! The requests of one service that were read from proxies, bounded.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::event_delta::{Shown, text};

/// Maximum number of live requests, and of last requests, that are shown.
const MAX_LIVE: usize = 100;
const MAX_LAST: usize = 20;
/// Maximum number of live requests of a proxy in a second; further ones are counted.
const MAX_IN_SECOND: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// Bounds of a decision: steps, attempts, and characters of a text.
const MAX_STEPS: usize = 40;
const MAX_ATTEMPTS: usize = 10;
const MAX_TEXT: usize = 800;

const LIVE_FIELDS: &[&str] = &[
    "time",
    "method",
    "path",
    "status",
    "totalMs",
    "instance",
    "region",
    "caller",
    "route",
    "backend",
    "fault",
    "injected",
    "ended",
    "grpcStatus",
];
const LAST_FIELDS: &[&str] = &["time", "method", "path", "caller", "status", "ms", "fault"];
const STEP_FIELDS: &[&str] = &["step", "detail"];
const ATTEMPT_FIELDS: &[&str] = &["service", "instance", "region", "revision", "ms", "outcome"];

/// Requests of one service.
#[derive(Debug)]
pub(super) struct SeenRequests {
    /// When a page last looked at them.
    looked_at: Instant,
    /// Number of the next live request, and the newest ones.
    next: u64,
    live: VecDeque<(u64, Arc<str>)>,
    proxies: BTreeMap<SocketAddr, SeenProxy>,
}

/// What one proxy has shown.
#[derive(Debug)]
struct SeenProxy {
    last: Vec<Value>,
    /// Why the proxy shows nothing; `None` if it responds.
    problem: Option<String>,
    /// Number of live requests that are not shown, because too many came at once.
    shed: u64,
    /// Beginning of a second, and the number of live requests since.
    second: (Instant, u32),
}

impl SeenRequests {
    /// No requests yet of these proxies.
    pub(super) fn of(proxies: &[SocketAddr]) -> Self {
        let now = Instant::now();
        let seen = || SeenProxy { last: Vec::new(), problem: None, shed: 0, second: (now, 0) };
        let proxies = proxies.iter().map(|proxy| (*proxy, seen())).collect();
        Self { looked_at: now, next: 0, live: VecDeque::new(), proxies }
    }

    /// Whether no page has looked at them for this time.
    pub(super) fn is_unused_for(&self, time: Duration) -> bool {
        self.looked_at.elapsed() >= time
    }

    /// Replaces the last requests of a proxy, or notes why it shows none.
    pub(super) fn set_last(&mut self, proxy: SocketAddr, last: Result<Vec<Value>, String>) {
        let Some(seen) = self.proxies.get_mut(&proxy) else { return };
        (seen.last, seen.problem) = match last {
            Ok(records) => (records.iter().take(MAX_LAST).map(|one| record(one, proxy)).collect(), None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
    }

    /// Adds a line of a proxy's tap: a request, or the number of those that the proxy did not send.
    pub(super) fn add_live(&mut self, proxy: SocketAddr, line: &[u8]) {
        let Some(seen) = self.proxies.get_mut(&proxy) else { return };
        if seen.second.0.elapsed() >= SECOND {
            seen.second = (Instant::now(), 0);
        }
        seen.second.1 += 1;
        // Lines beyond the maximum are not parsed, so that a busy proxy costs little.
        if seen.second.1 > MAX_IN_SECOND {
            seen.shed += 1;
            return;
        }
        let Ok(request) = serde_json::from_slice::<Value>(line) else { return };
        if let Some(shed) = request["shed"].as_u64() {
            seen.shed = seen.shed.saturating_add(shed);
            return;
        }
        let mut row = kept(&request, LIVE_FIELDS);
        row.insert("proxy".to_owned(), json!(proxy.to_string()));
        self.live.truncate(MAX_LIVE - 1);
        self.live.push_front((self.next, Arc::from(text(&row))));
        self.next += 1;
    }

    /// The state of each proxy, and the last requests by time.
    pub(super) fn last(&mut self) -> Shown {
        self.looked_at = Instant::now();
        let proxy = |(address, seen): (&SocketAddr, &SeenProxy)| json!({ "address": address.to_string(), "problem": seen.problem, "shed": seen.shed });
        let head = json!({ "proxies": self.proxies.iter().map(proxy).collect::<Vec<_>>() });
        let mut last: Vec<&Value> = self.proxies.values().flat_map(|seen| &seen.last).collect();
        let time = |record: &Value| record["time"].as_f64().unwrap_or_default();
        last.sort_by(|one, other| time(other).total_cmp(&time(one)));
        last.truncate(MAX_LAST);
        let name =
            |record: &Value| format!("{:.3} {}", time(record), record["proxy"].as_str().unwrap_or_default());
        let rows = last.iter().map(|record| (name(record), Arc::from(text(*record))));
        Shown::with_rows(&head, rows)
    }

    /// The newest live requests by their number.
    pub(super) fn live(&mut self) -> Shown {
        self.looked_at = Instant::now();
        let rows = self.live.iter().map(|(number, row)| (format!("{number:012}"), Arc::clone(row)));
        Shown::with_rows(&Value::Null, rows)
    }
}

/// A recorded request of a proxy with its decision.
fn record(record: &Value, proxy: SocketAddr) -> Value {
    let list = |name: &str, fields: &[&str], most: usize| {
        let all = record[name].as_array().into_iter().flatten().take(most);
        Value::Array(all.map(|one| Value::Object(kept(one, fields))).collect())
    };
    let mut row = kept(record, LAST_FIELDS);
    row.insert("proxy".to_owned(), json!(proxy.to_string()));
    row.insert("steps".to_owned(), list("reasons", STEP_FIELDS, MAX_STEPS));
    row.insert("attempts".to_owned(), list("attempts", ATTEMPT_FIELDS, MAX_ATTEMPTS));
    Value::Object(row)
}

/// Some fields of an object: numbers and texts, which are cut off.
fn kept(object: &Value, fields: &[&str]) -> Map<String, Value> {
    let field = |name: &&str| {
        let value = match object.get(*name)? {
            Value::String(text) => json!(text.chars().take(MAX_TEXT).collect::<String>()),
            number @ Value::Number(_) => number.clone(),
            _ => return None,
        };
        Some(((*name).to_owned(), value))
    };
    fields.iter().filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> SocketAddr {
        "127.0.0.1:7411".parse().unwrap()
    }

    fn rows(shown: &Shown) -> Map<String, Value> {
        let data: Value = serde_json::from_str(&shown.since(None).unwrap()).unwrap();
        data["rows"].as_object().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn live_requests_are_bounded_and_those_beyond_are_counted() {
        let mut seen = SeenRequests::of(&[address()]);
        let request = |number: u32| json!({ "path": format!("/{number}"), "status": 200, "secret": "x" });
        for number in 0..MAX_IN_SECOND + 5 {
            seen.add_live(address(), request(number).to_string().as_bytes());
        }
        assert_eq!(rows(&seen.live()).len(), MAX_IN_SECOND as usize);
        let first = &rows(&seen.live())["000000000000"];
        assert_eq!(*first, json!({ "path": "/0", "status": 200, "proxy": "127.0.0.1:7411" }));
        tokio::time::advance(SECOND).await;
        seen.add_live(address(), b"{\"shed\": 7}\n");
        seen.add_live(address(), b"no json\n");
        let head: Value = serde_json::from_str(&seen.last().since(None).unwrap()).unwrap();
        assert_eq!(head["head"]["proxies"][0]["shed"], 12);
        for second in 0..=MAX_LIVE as u32 / MAX_IN_SECOND {
            tokio::time::advance(SECOND).await;
            (0..MAX_IN_SECOND).for_each(|_| seen.add_live(address(), request(second).to_string().as_bytes()));
        }
        assert_eq!(rows(&seen.live()).len(), MAX_LIVE);
    }

    #[tokio::test(start_paused = true)]
    async fn last_requests_have_decision_and_go_with_their_proxy() {
        let mut seen = SeenRequests::of(&[address()]);
        let steps = json!([{ "step": "pick", "detail": "x".repeat(MAX_TEXT + 1), "more": 1 }]);
        let attempts = json!([{ "instance": "a", "outcome": "200", "address": "10.0.0.1:80" }]);
        let request =
            |time: f64| json!({ "time": time, "status": 200, "reasons": steps, "attempts": attempts });
        seen.set_last(address(), Ok(vec![request(2.0), request(3.0)]));
        let shown = rows(&seen.last());
        assert_eq!(shown.keys().collect::<Vec<_>>(), ["2.000 127.0.0.1:7411", "3.000 127.0.0.1:7411"]);
        let newest = &shown["3.000 127.0.0.1:7411"];
        assert_eq!(newest["steps"][0]["detail"].as_str().unwrap().len(), MAX_TEXT);
        assert_eq!(newest["attempts"], json!([{ "instance": "a", "outcome": "200" }]));
        seen.set_last(address(), Err("does not respond".to_owned()));
        assert_eq!(rows(&seen.last()).len(), 0);
        tokio::time::advance(SECOND).await;
        assert!(seen.is_unused_for(SECOND));
    }
}
