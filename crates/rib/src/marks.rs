/// When to tell every watcher where it stands although nothing changed for it: twice while the log of changes is written
/// anew, so that whoever returns resumes.
#[derive(Debug)]
pub(crate) struct Marks {
    next: u64,
}

impl Marks {
    /// For a table with so many changes behind it and so many in its log at most.
    pub(crate) fn new((changes, longest): (u64, usize)) -> Self {
        Self { next: changes + (longest as u64 / 2).max(1) }
    }

    /// Whether it is time again.
    pub(crate) fn due(&mut self, (changes, longest): (u64, usize)) -> bool {
        let due = changes >= self.next;
        if due {
            *self = Self::new((changes, longest));
        }
        due
    }
}
