//! The access log: a line a request, for people or for machines, of all or of some.

pub(crate) mod entry;

use std::{
    io::{self, Write},
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use crate::observe::{access_log::entry::AccessLogEntry, counter::increment};

/// Lines that wait to be written; the next ones are dropped and counted, since a reader that has stopped reading must
/// not stop calls.
const QUEUE: usize = 4096;

/// How requests are logged, to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The form of lines.
    pub form: AccessLogFormat,
    /// One line for so many answered requests; those that failed (5xx, or no server answered) are all logged. 0 is taken for 1.
    pub one_in: u64,
}

/// The form of access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// No line.
    #[default]
    Off,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes the log.
#[derive(Debug)]
pub(crate) struct AccessLogger {
    log: AccessLogConfig,
    seen: AtomicU64,
    lines: Option<SyncSender<AccessLogEntry>>,
    dropped: AtomicU64,
}

impl AccessLogger {
    pub(crate) fn start(log: AccessLogConfig) -> Self {
        let lines = (log.form != AccessLogFormat::Off).then(|| {
            let (lines, queue) = sync_channel(QUEUE);
            thread::spawn(move || write(log.form, &queue, io::stdout().lock()));
            lines
        });
        Self { log, seen: AtomicU64::new(0), lines, dropped: AtomicU64::new(0) }
    }

    /// Whether anything is logged.
    pub(crate) fn is_enabled(&self) -> bool {
        self.lines.is_some()
    }

    /// Whether a request is one of those to be logged; to be asked once of each.
    pub(crate) fn selects(&self, failed: bool) -> bool {
        self.is_enabled()
            && (self.seen.fetch_add(1, Relaxed).is_multiple_of(self.log.one_in.max(1)) || failed)
    }

    /// Writes a line, or drops it if the queue is full.
    pub(crate) fn write(&self, entry: AccessLogEntry) {
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_)) = lines.try_send(entry) {
            increment(&self.dropped);
        }
    }

    /// Lines dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

fn write(form: AccessLogFormat, lines: &Receiver<AccessLogEntry>, out: impl Write) {
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

fn write_one(form: AccessLogFormat, entry: &AccessLogEntry, out: &mut impl Write) -> io::Result<()> {
    match form {
        AccessLogFormat::Off => return Ok(()),
        AccessLogFormat::Json => serde_json::to_writer(&mut *out, entry)?,
        AccessLogFormat::Text => write!(out, "{entry}")?,
    }
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_requests_and_all_failures_are_logged() {
        let (lines, queue) = sync_channel(100);
        let log = AccessLogConfig { form: AccessLogFormat::Text, one_in: 10 };
        let access = AccessLogger { lines: Some(lines), ..AccessLogger::start(AccessLogConfig::default()) };
        let access = AccessLogger { log, ..access };
        for number in 0..100 {
            if access.selects(number == 55) {
                access.write(AccessLogEntry::default());
            }
        }
        assert_eq!(queue.try_iter().count(), 11);
        (0..200).for_each(|_| access.write(AccessLogEntry::default()));
        assert_eq!(access.dropped(), 100, "the queue is full");
    }

    #[test]
    fn nothing_is_counted_while_disabled() {
        let access = AccessLogger::start(AccessLogConfig::default());
        assert!(!access.selects(true) && access.seen.load(Relaxed) == 0);
    }
}
