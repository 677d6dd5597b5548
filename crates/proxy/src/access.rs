//! The access log: a line a request, for people or for machines, of all or of some.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

/// Lines that wait to be written; the next ones are dropped and counted, since a reader that has stopped reading must
/// not stop calls.
const WAITING: usize = 4096;

/// How requests are logged, to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// The form of lines.
    pub form: Form,
    /// One line for so many answered requests; those that failed (5xx, or no server answered) are all logged. 0 is taken for 1.
    pub one_in: u64,
}

/// The form of access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// No line.
    #[default]
    Off,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged of a request.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Seconds since 1970, with milliseconds.
    pub(crate) time: f64,
    pub(crate) service: String,
    pub(crate) method: String,
    /// Without its query, which may hold what is secret.
    pub(crate) path: String,
    pub(crate) status: u16,
    /// To the head of the answer, in milliseconds.
    pub(crate) ms: f64,
    pub(crate) caller: String,
    /// Why no server answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<&'static str>,
}

/// Writes the log.
#[derive(Debug)]
pub(crate) struct Access {
    log: AccessLog,
    seen: AtomicU64,
    lines: Option<SyncSender<Entry>>,
}

impl Access {
    pub(crate) fn start(log: AccessLog) -> Self {
        let lines = (log.form != Form::Off).then(|| {
            let (lines, written) = sync_channel(WAITING);
            thread::spawn(move || write(log.form, &written, io::stdout().lock()));
            lines
        });
        Self { log, seen: AtomicU64::new(0), lines }
    }

    /// Logs a request, if it is one of those to be logged. `entry` is made only then.
    pub(crate) fn note(&self, failed: bool, dropped: &AtomicU64, entry: impl FnOnce() -> Entry) {
        let Some(lines) = &self.lines else { return };
        let nth = self.seen.fetch_add(1, Relaxed);
        if !failed && !nth.is_multiple_of(self.log.one_in.max(1)) {
            return;
        }
        if let Err(TrySendError::Full(_)) = lines.try_send(entry()) {
            dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The time now, as [`Entry::time`] has it.
#[allow(clippy::disallowed_methods, reason = "lines of a log say when, and nothing is decided by it")]
pub(crate) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_millis() as f64 / 1e3
}

fn write(form: Form, lines: &Receiver<Entry>, out: impl Write) {
    let mut out = io::BufWriter::new(out);
    while let Ok(entry) = lines.recv() {
        // Whoever reads may be gone; calls go on.
        let mut next = Some(entry);
        while let Some(entry) = next {
            let _ = write_one(form, &entry, &mut out);
            next = lines.try_recv().ok();
        }
        let _ = out.flush();
    }
}

fn write_one(form: Form, entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    match form {
        Form::Off => return Ok(()),
        Form::Json => serde_json::to_writer(&mut *out, entry)?,
        Form::Text => {
            let Entry { time, service, method, path, status, ms, caller, fault } = entry;
            // Debug, since a path may hold anything.
            write!(out, "{time:.3} {service} {method} {path:?} {status} {ms:.1} ms from {caller}")?;
            if let Some(fault) = fault {
                write!(out, " ({fault})")?;
            }
        }
    }
    out.write_all(b"\n")
}

/// Shared by all connections.
pub(crate) type SharedAccess = Arc<Access>;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            time: 1.5,
            service: "shop/cart".into(),
            method: "GET".into(),
            path: "/a\n".into(),
            status: 503,
            ms: 2.25,
            caller: "127.0.0.1:1".into(),
            fault: Some("no_endpoints"),
        }
    }

    #[test]
    fn a_line_is_one_line_in_either_form() {
        let line = |form| {
            let mut out = Vec::new();
            write_one(form, &entry(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            line(Form::Text),
            "1.500 shop/cart GET \"/a\\n\" 503 2.2 ms from 127.0.0.1:1 (no_endpoints)\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(Form::Json)).unwrap();
        assert_eq!((&json["path"], &json["status"]), (&"/a\n".into(), &503.into()));
        assert_eq!(line(Form::Json).lines().count(), 1);
    }

    #[test]
    fn one_of_so_many_is_logged_and_every_failure() {
        let (lines, written) = sync_channel(100);
        let log = AccessLog { form: Form::Text, one_in: 10 };
        let access = Access { log, seen: AtomicU64::new(0), lines: Some(lines) };
        let dropped = AtomicU64::new(0);
        for number in 0..100 {
            access.note(number == 55, &dropped, entry);
        }
        assert_eq!((written.try_iter().count(), dropped.load(Relaxed)), (11, 0));
        for _ in 0..2_000 {
            access.note(false, &dropped, entry);
        }
        assert_eq!(dropped.load(Relaxed), 100, "nobody reads");
    }
}
