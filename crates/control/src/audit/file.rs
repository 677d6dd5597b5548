use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::{AuditEntry, Draft, entry::first_hash};

/// The current file, and the one before it.
const CURRENT: &str = "audit.log";
const FORMER: &str = "audit.1.log";
/// The size at which a file becomes the former one: the log has at most twice this.
const MAX_BYTES: u64 = 32 << 20;

/// The end of the log.
#[derive(Debug)]
pub(super) struct AuditFile {
    folder: PathBuf,
    file: File,
    bytes: u64,
    number: u64,
    hash: String,
    max_bytes: u64,
}

impl AuditFile {
    /// Continues the log in a folder. A last line that is not whole, since the machine stopped, is removed.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(CURRENT);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let (bytes, last) = whole_lines(&mut file)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        let last = match last {
            Some(line) => Some(line),
            None => last_line(&folder.join(FORMER))?,
        };
        let (number, hash) = last.as_deref().and_then(head_of).unwrap_or_else(|| (0, first_hash()));
        Ok(Self { folder: folder.to_owned(), file, bytes, number, hash, max_bytes: MAX_BYTES })
    }

    pub(super) fn append(&mut self, draft: Draft) -> io::Result<()> {
        if self.bytes >= self.max_bytes {
            self.sync()?;
            fs::rename(self.folder.join(CURRENT), self.folder.join(FORMER))?;
            let (number, hash, max_bytes) = (self.number, self.hash.clone(), self.max_bytes);
            *self = Self { number, hash, max_bytes, ..Self::open(&self.folder)? };
        }
        let Draft { at_ms, who, revision, store, message, changes } = draft;
        let (number, previous) = (self.number + 1, self.hash.clone());
        let store = Some(store);
        let (line, hash) =
            AuditEntry { number, at_ms, who, revision, store, message, changes, previous }.line()?;
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        (self.number, self.hash) = (number, hash);
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The bytes up to the end of the last whole line, and that line.
fn whole_lines(file: &mut File) -> io::Result<(u64, Option<String>)> {
    let length = file.metadata()?.len();
    // A line has at most one batch, whose values are short or hashes.
    let tail = length.min(16 << 20);
    file.seek(SeekFrom::Start(length - tail))?;
    let mut text = Vec::new();
    file.take(tail).read_to_end(&mut text)?;
    let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { return Ok((length - tail, None)) };
    let start = text[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = String::from_utf8_lossy(&text[start..end]).into_owned();
    Ok((length - tail + end as u64 + 1, Some(line)))
}

/// The last whole line of a file; `None` without one.
fn last_line(path: &Path) -> io::Result<Option<String>> {
    match File::open(path) {
        Ok(mut file) => Ok(whole_lines(&mut file)?.1),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last entry of the log in a folder. Changes nothing there.
pub(super) fn last_entry(folder: &Path) -> io::Result<Option<AuditEntry>> {
    let line = match last_line(&folder.join(CURRENT))? {
        Some(line) => Some(line),
        None => last_line(&folder.join(FORMER))?,
    };
    Ok(line.and_then(|line| serde_json::from_str(line.split_once(' ')?.1).ok()))
}

/// The number and the hash of an entry.
fn head_of(line: &str) -> Option<(u64, String)> {
    let (hash, content) = line.split_once(' ')?;
    let entry: AuditEntry = serde_json::from_str(content).ok()?;
    Some((entry.number, hash.to_owned()))
}

/// Lines after the entry with this number, up to about `max_bytes`, and whether none follows.
pub(super) fn read(folder: &Path, after: u64, max_bytes: usize) -> io::Result<(Vec<String>, bool)> {
    let (mut lines, mut bytes) = (Vec::new(), 0);
    for name in [FORMER, CURRENT] {
        let file = match File::open(folder.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines() {
            let line = line?;
            // What cannot be read is for the reader to see.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::ChainReader;

    fn draft(revision: u64) -> Draft {
        let (who, store) = ("alice".into(), "5".into());
        Draft { at_ms: 1, who, revision, store, message: None, changes: Vec::new() }
    }

    fn verified(folder: &Path) -> Vec<u64> {
        let mut chain = ChainReader::default();
        let (lines, _) = read(folder, 0, usize::MAX).unwrap();
        lines.iter().map(|line| chain.read(line).unwrap().revision).collect()
    }

    #[test]
    fn the_log_continues_after_a_restart_and_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditFile::open(folder.path()).unwrap();
        log.append(draft(1)).unwrap();
        log.append(draft(2)).unwrap();
        fs::write(
            folder.path().join(CURRENT),
            [fs::read(folder.path().join(CURRENT)).unwrap(), b"torn".to_vec()].concat(),
        )
        .unwrap();
        AuditFile::open(folder.path()).unwrap().append(draft(3)).unwrap();
        assert_eq!(verified(folder.path()), [1, 2, 3]);
        assert_eq!(read(folder.path(), 2, usize::MAX).unwrap().0.len(), 1);
        assert!(!read(folder.path(), 0, 1).unwrap().1, "a page has at least one entry");
    }

    #[test]
    fn the_log_is_bounded_and_the_chain_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditFile::open(folder.path()).unwrap();
        log.max_bytes = 1000;
        for revision in 1..=50 {
            log.append(draft(revision)).unwrap();
        }
        let kept = verified(folder.path());
        assert_eq!(kept.last(), Some(&50));
        assert!(kept.len() < 20, "{kept:?}");
        drop(log);
        AuditFile::open(folder.path()).unwrap().append(draft(51)).unwrap();
        assert_eq!(verified(folder.path()).last(), Some(&51));
    }
}
