use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::{
    AuditEntry, AuditEvent, Draft, Log,
    author_quotas::{Logged, Quotas},
    entry::first_hash,
};
use fairmesh_rib::wall_clock::now_ms;

/// Size in bytes at which the current file becomes the previous one. A log therefore has at most twice this size.
const MAX_BYTES: u64 = 64 << 20;

/// The current file of a log, and the state needed to append to it.
#[derive(Debug)]
pub(super) struct AuditFile {
    folder: PathBuf,
    log: Log,
    file: File,
    bytes: u64,
    is_synced: bool,
    number: u64,
    hash: String,
    /// Revision and store of the last write. They are stated in entries about events, which have none of their own.
    written: (u64, Option<String>),
    /// Number and hash of the entry before the current file's first entry, as stated in that first entry.
    before_first: Option<(u64, String)>,
    quotas: Quotas,
    max_bytes: u64,
}

impl AuditFile {
    /// Opens the log in a folder to continue it. An incomplete last line, left by a crash, is removed.
    pub(super) fn open(folder: &Path, log: Log) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(log.current());
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let (bytes, last) = whole_lines(&mut file)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        let last = match last {
            Some(line) => Some(line),
            None => last_line(&folder.join(log.former()))?,
        };
        let (number, hash) = last.as_deref().and_then(head_of).unwrap_or_else(|| (0, first_hash()));
        let written = last_entry(folder, log)?.map(|entry| (entry.revision, entry.store)).unwrap_or_default();
        let before_first = before_first(&folder.join(log.current()))?;
        let (folder, quotas) = (folder.to_owned(), Quotas::default());
        let mut opened = Self {
            folder,
            log,
            file,
            bytes,
            is_synced: true,
            number,
            hash,
            written,
            before_first,
            quotas,
            max_bytes: MAX_BYTES,
        };
        opened.adopt()?;
        Ok(opened)
    }

    /// Writes a checkpoint for entries that an earlier release removed without one.
    fn adopt(&mut self) -> io::Result<()> {
        let oldest = match before_first(&self.folder.join(self.log.former()))? {
            Some(oldest) => Some(oldest),
            None => self.before_first.clone(),
        };
        match oldest.filter(|(number, _)| *number > 0) {
            Some(oldest) if !has_checkpoint(&self.folder, self.log)? => self.write_checkpoint(oldest),
            _ => Ok(()),
        }
    }

    fn write_checkpoint(&mut self, (number, hash): (u64, String)) -> io::Result<()> {
        let event = AuditEvent::Checkpoint { number, hash };
        self.write(Draft::of_event(now_ms(), "control plane".into(), event))
    }

    /// Appends an entry, subject to its author's quota.
    pub(super) fn append(&mut self, draft: Draft) -> io::Result<()> {
        let at_ms = draft.at_ms;
        let is_over = self.quotas.is_over(at_ms);
        self.write_counted(at_ms, is_over)?;
        if is_over {
            self.quotas.begin(at_ms);
        }
        let line = self.entry(draft.clone()).line()?.0;
        let hashed = draft.clone().hashed();
        let mut quotas = std::mem::take(&mut self.quotas);
        let admitted = quotas.admit(&draft, &line, || self.entry(hashed.clone()).line().map(|line| line.0));
        self.quotas = quotas;
        match admitted? {
            Logged::InFull => self.write(draft),
            Logged::Hashed => self.write(hashed),
            Logged::Counted => Ok(()),
        }
    }

    /// Writes entries with the counts: all counts, or only those that have waited long enough.
    pub(super) fn write_counted(&mut self, at_ms: u64, all: bool) -> io::Result<()> {
        self.quotas.take_counted(at_ms, all).into_iter().try_for_each(|draft| self.write(draft))
    }

    fn write(&mut self, draft: Draft) -> io::Result<()> {
        if self.bytes >= self.max_bytes {
            self.rotate()?;
        }
        let entry = self.entry(draft);
        let (line, hash) = entry.line()?;
        self.is_synced = false;
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        let before = (self.number, std::mem::replace(&mut self.hash, hash));
        self.before_first.get_or_insert(before);
        (self.number, self.written) = (entry.number, (entry.revision, entry.store));
        Ok(())
    }

    /// Makes the current file the previous one. A checkpoint accounts for the entries that are removed.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let [current, former] = [self.log.current(), self.log.former()].map(|name| self.folder.join(name));
        let removed = former.exists().then(|| self.before_first.take()).flatten();
        fs::rename(&current, &former)?;
        self.file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&current)?;
        (self.bytes, self.before_first) = (0, None);
        match removed {
            Some(removed) => self.write_checkpoint(removed),
            None => Ok(()),
        }
    }

    /// Completes a draft to the next entry.
    fn entry(&self, draft: Draft) -> AuditEntry {
        let Draft { at_ms, who, revision, store, message, changes, event } = draft;
        let (number, previous) = (self.number + 1, self.hash.clone());
        let (revision, store) = match store.is_empty() {
            true => self.written.clone(),
            false => (revision, Some(store)),
        };
        AuditEntry { number, at_ms, who, revision, store, message, changes, event, previous }
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_synced, true) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}

/// Length of the file up to the end of its last complete line, and that line.
fn whole_lines(file: &mut File) -> io::Result<(u64, Option<String>)> {
    let length = file.metadata()?.len();
    // Long enough for any line: a line holds at most one batch, whose values are short or hashed.
    let tail = length.min(16 << 20);
    file.seek(SeekFrom::Start(length - tail))?;
    let mut text = Vec::new();
    file.take(tail).read_to_end(&mut text)?;
    let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { return Ok((length - tail, None)) };
    let start = text[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = String::from_utf8_lossy(&text[start..end]).into_owned();
    Ok((length - tail + end as u64 + 1, Some(line)))
}

/// The last complete line of a file; `None` without one.
fn last_line(path: &Path) -> io::Result<Option<String>> {
    match open_existing(path)? {
        Some(mut file) => Ok(whole_lines(&mut file)?.1),
        None => Ok(None),
    }
}

/// The last entry of a log in a folder. Does not change the files.
pub(super) fn last_entry(folder: &Path, log: Log) -> io::Result<Option<AuditEntry>> {
    let line = match last_line(&folder.join(log.current()))? {
        Some(line) => Some(line),
        None => last_line(&folder.join(log.former()))?,
    };
    Ok(line.and_then(|line| serde_json::from_str(line.split_once(' ')?.1).ok()))
}

/// Number and hash of the entry before a file's first one, as the first one states them.
fn before_first(path: &Path) -> io::Result<Option<(u64, String)>> {
    let Some(file) = open_existing(path)? else { return Ok(None) };
    let line = BufReader::new(file).lines().next().transpose()?;
    let entry = line.and_then(|line| serde_json::from_str::<AuditEntry>(line.split_once(' ')?.1).ok());
    Ok(entry.map(|entry| (entry.number.saturating_sub(1), entry.previous)))
}

fn has_checkpoint(folder: &Path, log: Log) -> io::Result<bool> {
    for name in [log.current(), log.former()] {
        let Some(file) = open_existing(&folder.join(name))? else { continue };
        for line in BufReader::new(file).lines() {
            if line?.contains("\"event\":{\"checkpoint\":") {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Number and hash of the entry in a line.
fn head_of(line: &str) -> Option<(u64, String)> {
    let (hash, content) = line.split_once(' ')?;
    let entry: AuditEntry = serde_json::from_str(content).ok()?;
    Some((entry.number, hash.to_owned()))
}

/// Lines after the entry with this number, up to about `max_bytes`, and whether the last line is among them.
pub(super) fn read(folder: &Path, log: Log, after: u64, max_bytes: usize) -> io::Result<(Vec<String>, bool)> {
    let (mut lines, mut bytes) = (Vec::new(), 0);
    for name in [log.former(), log.current()] {
        let Some(file) = open_existing(&folder.join(name))? else { continue };
        for line in BufReader::new(file).lines() {
            let line = line?;
            // Lines that cannot be parsed are returned too, so that the reader sees them.
            if head_of(&line).is_some_and(|(number, _)| number <= after) {
                continue;
            }
            if bytes + line.len() > max_bytes && !lines.is_empty() {
                return Ok((lines, false));
            }
            bytes += line.len();
            lines.push(line);
        }
    }
    Ok((lines, true))
}

/// The newest lines, oldest first: at most this many, and at most this many bytes of each file.
pub(super) fn read_newest(
    folder: &Path,
    log: Log,
    (most, max_bytes): (usize, usize),
) -> io::Result<Vec<String>> {
    let mut newest = Vec::new();
    for name in [log.current(), log.former()] {
        if newest.len() >= most {
            break;
        }
        let Some(mut file) = open_existing(&folder.join(name))? else { continue };
        let mut lines = tail(&mut file, max_bytes)?;
        lines.drain(..lines.len().saturating_sub(most - newest.len()));
        lines.append(&mut newest);
        newest = lines;
    }
    Ok(newest)
}

/// The complete lines within the last bytes of a file.
fn tail(file: &mut File, max_bytes: usize) -> io::Result<Vec<String>> {
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(max_bytes as u64);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(length - skipped).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Before the first line end and after the last one, lines are incomplete.
    let first = usize::from(skipped > 0);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    Ok(whole.lines().skip(first).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuditChange, AuditValue, BrokenChain, ChainReader};

    fn draft(revision: u64) -> Draft {
        let (who, store) = ("alice".into(), "5".into());
        Draft { at_ms: 1, who, revision, store, message: None, changes: Vec::new(), event: None }
    }

    fn open(folder: &Path) -> AuditFile {
        AuditFile::open(folder, Log::Security).unwrap()
    }

    /// All entries, and the number from which they are complete.
    fn verified(folder: &Path) -> (Vec<AuditEntry>, Result<Option<u64>, BrokenChain>) {
        let mut chain = ChainReader::default();
        let (lines, _) = read(folder, Log::Security, 0, usize::MAX).unwrap();
        let entries = lines.iter().map(|line| chain.read(line).unwrap()).collect();
        (entries, chain.complete_from(0))
    }

    fn revisions(folder: &Path) -> Vec<u64> {
        let (entries, _) = verified(folder);
        entries.iter().filter(|entry| entry.event.is_none()).map(|entry| entry.revision).collect()
    }

    #[test]
    fn audit_log_continues_after_restart_and_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let current = folder.path().join(Log::Security.current());
        let mut log = open(folder.path());
        log.append(draft(1)).unwrap();
        log.append(draft(2)).unwrap();
        fs::write(&current, [fs::read(&current).unwrap(), b"torn".to_vec()].concat()).unwrap();
        open(folder.path()).append(draft(3)).unwrap();
        assert_eq!(revisions(folder.path()), [1, 2, 3]);
        assert_eq!(read(folder.path(), Log::Security, 2, usize::MAX).unwrap().0.len(), 1);
        assert!(!read(folder.path(), Log::Security, 0, 1).unwrap().1, "a page has at least one entry");
        assert_eq!(verified(folder.path()).1, Ok(Some(1)));
    }

    #[test]
    fn rotated_audit_log_is_complete_from_checkpoint_and_gaps_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path());
        log.max_bytes = 1000;
        for revision in 1..=50 {
            log.append(draft(revision)).unwrap();
        }
        let (kept, complete) = verified(folder.path());
        assert_eq!((kept.last().unwrap().revision, complete), (50, Ok(Some(kept[0].number))));
        assert!(kept.len() < 20 && kept[0].number > 30, "{kept:?}");
        drop(log);
        open(folder.path()).append(draft(51)).unwrap();
        assert_eq!(revisions(folder.path()).last(), Some(&51));
        fs::remove_file(folder.path().join(Log::Security.former())).unwrap();
        let (kept, complete) = verified(folder.path());
        assert_eq!(complete, Err(BrokenChain::Gap { first: kept[0].number }));
        open(folder.path()).append(draft(52)).unwrap();
        assert!(verified(folder.path()).1.is_err(), "a restart hides no gap");
    }

    #[test]
    fn newest_audit_lines_are_read_from_end_of_both_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path());
        log.max_bytes = 1000;
        for revision in 1..=10 {
            log.append(draft(revision)).unwrap();
        }
        let all = read(folder.path(), Log::Security, 0, usize::MAX).unwrap().0;
        let newest = |most, max_bytes| read_newest(folder.path(), Log::Security, (most, max_bytes)).unwrap();
        for most in 0..=all.len() {
            assert_eq!(newest(most, usize::MAX), all[all.len() - most..], "{most}");
        }
        let last = all.last().unwrap();
        assert_eq!(newest(1, last.len() + 10), std::slice::from_ref(last), "a part of a line is left out");
    }

    #[test]
    fn audit_log_of_earlier_release_is_complete_from_its_first_entry() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path());
        (log.number, log.hash) = (41, "f".repeat(64));
        log.append(draft(42)).unwrap();
        assert!(verified(folder.path()).1.is_err());
        open(folder.path()).append(draft(43)).unwrap();
        assert_eq!(verified(folder.path()).1, Ok(Some(42)));
        open(folder.path());
        assert_eq!(verified(folder.path()).0.len(), 3, "one checkpoint");
    }

    #[test]
    fn flood_of_writes_keeps_earlier_audit_entries_and_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path());
        log.max_bytes = 16 << 20;
        log.append(draft(1)).unwrap();
        let value = Some(AuditValue::of(&[7; 4000]));
        for revision in 2..=20_000 {
            let key = format!("/t/shop/policies/s{revision}");
            let changes = vec![AuditChange { key, before: None, after: value.clone() }];
            log.append(Draft { who: "mallory".into(), changes, ..draft(revision) }).unwrap();
        }
        log.write_counted(1, true).unwrap();
        let (kept, complete) = verified(folder.path());
        assert_eq!((kept[0].who.as_str(), complete), ("alice", Ok(Some(1))));
        let counted = |entry: &AuditEntry| match &entry.event {
            Some(AuditEvent::Counted { count, .. }) => *count,
            _ => 1,
        };
        assert_eq!(kept.iter().map(counted).sum::<u64>(), 20_000);
    }
}
