//! The access log: one line for each logged request, as text or JSON.

pub(crate) mod entry;

use std::{
    io::{self, Write},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{counter::increment, observe::access_log::entry::AccessLogEntry};

/// Maximum number of lines waiting to be written. Further lines are dropped and counted, so that a slow
/// reader does not delay calls.
const QUEUE: usize = 4096;

/// Configuration of the access log, which is written to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Format of lines.
    pub form: AccessLogFormat,
    /// Number N: one in N requests is logged; 0 counts as 1. Failed requests (5xx, or no response from a server) are
    /// always logged.
    pub one_in: u64,
}

/// Format of access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// No access log.
    #[default]
    Off,
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes the access log.
#[derive(Debug)]
pub struct AccessLogger {
    log: AccessLogConfig,
    seen: AtomicU64,
    lines: Option<mpsc::Sender<Queued>>,
    dropped: AtomicU64,
}

/// Messages to the writer thread, in order.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "all but the last are lines, and a box would cost each an allocation"
)]
enum Queued {
    Line(AccessLogEntry),
    /// Asks the thread to confirm that all earlier lines have been written.
    Flush(oneshot::Sender<()>),
}

impl AccessLogger {
    pub(crate) fn start(log: AccessLogConfig) -> Self {
        let lines = (log.form != AccessLogFormat::Off).then(|| {
            let (lines, queue) = mpsc::channel(QUEUE);
            thread::spawn(move || write(log.form, queue, io::stdout().lock()));
            lines
        });
        Self { log, seen: AtomicU64::new(0), lines, dropped: AtomicU64::new(0) }
    }

    /// Whether the access log is enabled.
    pub fn is_enabled(&self) -> bool {
        self.lines.is_some()
    }

    /// Whether a request is logged. Must be called once for each request.
    pub(crate) fn selects(&self, failed: bool) -> bool {
        self.is_enabled()
            && (self.seen.fetch_add(1, Relaxed).is_multiple_of(self.log.one_in.max(1)) || failed)
    }

    /// Writes a line, or drops it if the queue is full.
    pub(crate) fn write(&self, entry: AccessLogEntry) {
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_)) = lines.try_send(Queued::Line(entry)) {
            increment(&self.dropped);
        }
    }

    /// Waits until all queued lines have been written. They would otherwise be lost when the process ends.
    pub(crate) async fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, written) = oneshot::channel();
        if lines.send(Queued::Flush(done)).await.is_ok() {
            // Fails if the writer thread has ended; nothing more is written then.
            let _ = written.await;
        }
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

fn write(form: AccessLogFormat, mut queue: mpsc::Receiver<Queued>, out: impl Write) {
    let mut out = io::BufWriter::new(out);
    while let Some(first) = queue.blocking_recv() {
        let mut flushed = Vec::new();
        let mut next = Some(first);
        while let Some(queued) = next {
            match queued {
                // The reader may have closed standard output; calls continue.
                Queued::Line(entry) => {
                    let _ = write_one(form, &entry, &mut out);
                }
                Queued::Flush(done) => flushed.push(done),
            }
            next = queue.try_recv().ok();
        }
        let _ = out.flush();
        // Fails if the caller no longer waits.
        for done in flushed {
            let _ = done.send(());
        }
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
    use std::{
        pin::pin,
        sync::{Arc, Mutex},
    };

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn access_log_has_one_in_n_requests_and_all_failures() {
        let (lines, mut queue) = mpsc::channel(100);
        let log = AccessLogConfig { form: AccessLogFormat::Text, one_in: 10 };
        let access = AccessLogger { lines: Some(lines), ..AccessLogger::start(AccessLogConfig::default()) };
        let access = AccessLogger { log, ..access };
        for number in 0..100 {
            if access.selects(number == 55) {
                access.write(AccessLogEntry::default());
            }
        }
        let queued = std::iter::from_fn(|| queue.try_recv().ok()).count();
        assert_eq!(queued, 11);
        (0..200).for_each(|_| access.write(AccessLogEntry::default()));
        assert_eq!(access.dropped(), 100, "the queue is full");
    }

    /// Output that a test can read while another thread writes to it.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn access_log_flush_waits_until_logged_lines_are_written() {
        let (lines, queue) = mpsc::channel(100);
        let access = AccessLogger { lines: Some(lines), ..AccessLogger::start(AccessLogConfig::default()) };
        (0..3).for_each(|_| access.write(AccessLogEntry::default()));
        let mut flushed = pin!(access.flush());
        assert!(flushed.as_mut().now_or_never().is_none(), "nothing has been written");
        let out = Shared::default();
        let written = out.clone();
        thread::spawn(move || write(AccessLogFormat::Text, queue, out));
        flushed.await;
        let lines = written.0.lock().unwrap().iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines, 3);
    }

    #[test]
    fn disabled_access_log_counts_nothing() {
        let access = AccessLogger::start(AccessLogConfig::default());
        assert!(!access.selects(true) && access.seen.load(Relaxed) == 0);
    }
}
