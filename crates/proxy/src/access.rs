//! The access log: a line a request, for people or for machines, of all or of some.

mod entry;

use std::{
    io::{self, Write},
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

pub(crate) use entry::{Entry, millis, seconds};

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

    /// Whether anything is logged.
    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Whether a request is one of those to be logged; to be asked once of each.
    pub(crate) fn wants(&self, failed: bool) -> bool {
        self.is_on() && (self.seen.fetch_add(1, Relaxed).is_multiple_of(self.log.one_in.max(1)) || failed)
    }

    /// Writes a line; `false` where it was dropped, since so many wait already.
    pub(crate) fn write(&self, entry: Entry) -> bool {
        let Some(lines) = &self.lines else { return true };
        !matches!(lines.try_send(entry), Err(TrySendError::Full(_)))
    }
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
        Form::Text => write!(out, "{entry}")?,
    }
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_is_logged_and_every_failure() {
        let (lines, written) = sync_channel(100);
        let log = AccessLog { form: Form::Text, one_in: 10 };
        let access = Access { log, seen: AtomicU64::new(0), lines: Some(lines) };
        for number in 0..100 {
            if access.wants(number == 55) {
                assert!(access.write(Entry::default()));
            }
        }
        assert_eq!(written.try_iter().count(), 11);
        let dropped = (0..200).filter(|_| !access.write(Entry::default())).count();
        assert_eq!(dropped, 100, "nobody reads");
    }

    #[test]
    fn nothing_is_counted_while_it_is_off() {
        let access = Access::start(AccessLog::default());
        assert!(!access.wants(true) && access.seen.load(Relaxed) == 0);
    }
}
