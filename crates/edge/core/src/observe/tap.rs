//! Live requests for operators: `fairmesh tap` reads them from the admin port.
//!
//! A request is observed for a tap only while some tap selects its service. A tap that is read too slowly loses
//! requests, and gets the number of lost ones; requests never wait for a tap.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_calls::ServiceName;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::observe::access_log::entry::AccessLogEntry;

/// Maximum number of taps at a time.
const MAX_TAPS: usize = 8;
/// Maximum number of requests that wait for the reader of a tap.
const QUEUE: usize = 256;

/// The taps of a proxy.
#[derive(Debug, Default)]
pub struct Taps {
    /// Number of taps. Each request reads it.
    active: AtomicUsize,
    taps: RwLock<Vec<Arc<Tap>>>,
}

/// Selects the requests of a tap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TapFilter {
    /// The service, as `tenant/service`.
    service: String,
    /// Prefix of the path.
    path: Option<String>,
    method: Option<String>,
    /// A status such as `404`, or a class such as `5xx`.
    status: Option<String>,
    /// Selects only failed requests: no response from a server, or a status of 500 or above.
    failed: bool,
    /// Selects only requests that took at least this many milliseconds.
    min_ms: f64,
    /// Number N: one in N matching requests is selected; 0 selects all.
    one_in: u64,
}

#[derive(Debug)]
struct Tap {
    filter: TapFilter,
    lines: mpsc::Sender<Bytes>,
    /// Number of requests that the filter matched so far.
    selected: AtomicU64,
    shed: AtomicU64,
}

/// The requests of one tap, as lines of JSON. Dropping it ends the tap.
#[derive(Debug)]
pub struct TapReader {
    taps: Arc<Taps>,
    tap: Arc<Tap>,
    lines: mpsc::Receiver<Bytes>,
    /// Number of lost requests that the tap has been informed of.
    reported_shed: u64,
}

impl Taps {
    /// Starts a tap; `None` if there are too many.
    pub fn start(self: &Arc<Self>, filter: TapFilter) -> Option<TapReader> {
        let (sender, lines) = mpsc::channel(QUEUE);
        let tap =
            Arc::new(Tap { filter, lines: sender, selected: AtomicU64::new(0), shed: AtomicU64::new(0) });
        let mut taps = self.taps.write().unwrap_or_else(PoisonError::into_inner);
        if taps.len() >= MAX_TAPS {
            return None;
        }
        taps.push(Arc::clone(&tap));
        self.active.store(taps.len(), Relaxed);
        Some(TapReader { taps: Arc::clone(self), tap, lines, reported_shed: 0 })
    }

    /// Whether a tap reads requests of this service.
    #[inline]
    pub(crate) fn wants(&self, service: &ServiceName) -> bool {
        self.active.load(Relaxed) > 0 && self.of(service).next().is_some()
    }

    /// Offers a completed request to the taps. Taps that select it receive it.
    pub(crate) fn offer(&self, service: &ServiceName, entry: &AccessLogEntry) {
        let mut line = None;
        for tap in self.of(service).filter(|tap| tap.selects(entry)) {
            let line = line.get_or_insert_with(|| to_line(entry));
            if tap.lines.try_send(line.clone()).is_err() {
                tap.shed.fetch_add(1, Relaxed);
            }
        }
    }

    fn of(&self, service: &ServiceName) -> impl Iterator<Item = Arc<Tap>> {
        let taps = self.taps.read().unwrap_or_else(PoisonError::into_inner);
        let name = service.to_string();
        taps.iter().filter(|tap| tap.filter.service == name).cloned().collect::<Vec<_>>().into_iter()
    }

    fn remove(&self, tap: &Arc<Tap>) {
        let mut taps = self.taps.write().unwrap_or_else(PoisonError::into_inner);
        taps.retain(|one| !Arc::ptr_eq(one, tap));
        self.active.store(taps.len(), Relaxed);
    }
}

impl Tap {
    fn selects(&self, entry: &AccessLogEntry) -> bool {
        let TapFilter { path, method, status, failed, min_ms, one_in, service: _ } = &self.filter;
        let selected = path.as_ref().is_none_or(|path| entry.path.starts_with(path.as_str()))
            && method.as_ref().is_none_or(|method| entry.method.eq_ignore_ascii_case(method))
            && status.as_ref().is_none_or(|status| has_status(entry.status, status))
            && (!failed || entry.fault.is_some() || entry.status >= 500)
            && entry.total_ms >= *min_ms;
        selected && self.selected.fetch_add(1, Relaxed).is_multiple_of((*one_in).max(1))
    }
}

/// Whether a status equals `wanted`, or belongs to the class `wanted`.
fn has_status(status: u16, wanted: &str) -> bool {
    match wanted.strip_suffix("xx") {
        Some(class) => class.parse().is_ok_and(|class: u16| status / 100 == class),
        None => wanted.parse() == Ok(status),
    }
}

/// Serialises an entry as one line of JSON, with names in camel case like the other pages.
fn to_line(entry: &AccessLogEntry) -> Bytes {
    let fields = match serde_json::to_value(entry) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let fields: Map<_, _> = fields.into_iter().map(|(name, value)| (camel_case(&name), value)).collect();
    Bytes::from(format!("{}\n", Value::Object(fields)))
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

impl TapReader {
    /// The next line: a request, or the number of requests that were dropped.
    pub async fn next(&mut self) -> Option<Bytes> {
        let shed = self.tap.shed.load(Relaxed);
        if shed > self.reported_shed {
            let line = format!("{}\n", json!({ "shed": shed - self.reported_shed }));
            self.reported_shed = shed;
            return Some(line.into());
        }
        self.lines.recv().await
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.taps.remove(&self.tap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, status: u16, total_ms: f64) -> AccessLogEntry {
        AccessLogEntry {
            method: "GET".into(),
            path: path.into(),
            status,
            total_ms,
            ..AccessLogEntry::default()
        }
    }

    fn filter(text: Value) -> TapFilter {
        serde_json::from_value(text).unwrap()
    }

    #[tokio::test]
    async fn tap_receives_selected_requests_until_dropped() {
        let (taps, shop) = (Arc::new(Taps::default()), ServiceName::new("shop/web").unwrap());
        assert!(!taps.wants(&shop));
        let select = json!({ "service": "shop/web", "path": "/items", "status": "5xx", "minMs": 10.0 });
        let mut reader = taps.start(filter(select)).unwrap();
        assert!(taps.wants(&shop) && !taps.wants(&ServiceName::new("shop/cart").unwrap()));
        for other in [entry("/", 503, 20.0), entry("/items/1", 200, 20.0), entry("/items/1", 503, 9.0)] {
            taps.offer(&shop, &other);
        }
        taps.offer(&shop, &entry("/items/2", 503, 20.0));
        let line: Value = serde_json::from_slice(&reader.next().await.unwrap()).unwrap();
        assert_eq!((&line["path"], &line["totalMs"]), (&json!("/items/2"), &json!(20.0)));
        drop(reader);
        assert!(!taps.wants(&shop));
    }

    #[tokio::test]
    async fn slow_tap_reader_gets_number_of_dropped_requests() {
        let (taps, shop) = (Arc::new(Taps::default()), ServiceName::new("shop/web").unwrap());
        let mut reader = taps.start(filter(json!({ "service": "shop/web", "oneIn": 2 }))).unwrap();
        for _ in 0..2 * (QUEUE + 3) {
            taps.offer(&shop, &entry("/", 200, 1.0));
        }
        assert_eq!(reader.next().await.unwrap(), "{\"shed\":3}\n");
        assert!(reader.next().await.unwrap().starts_with(b"{\"attempts\""));
    }

    #[test]
    fn number_of_concurrent_taps_is_bounded() {
        let taps = Arc::new(Taps::default());
        let readers: Vec<_> = (0..MAX_TAPS).map(|_| taps.start(TapFilter::default()).unwrap()).collect();
        assert!(taps.start(TapFilter::default()).is_none());
        drop(readers);
        assert!(taps.start(TapFilter::default()).is_some());
    }
}
