use std::collections::VecDeque;

use crate::counted_step::{Cell, Counted};

/// Length of a step, in milliseconds.
pub const STEP_MS: u64 = 10_000;
/// Number of steps that are retained: ten minutes.
pub const STEPS: u64 = 60;
/// Number of minutes that are retained.
pub const MINUTES: u64 = 60;
/// Number of steps in a minute.
pub(crate) const STEPS_OF_MINUTE: u64 = 6;

/// The latest steps of a row, all of equal length. An absent step is a gap.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Step number of the first cell.
    first: u64,
    cells: VecDeque<Option<Cell>>,
}

impl Ring {
    /// Adds counts to a step. Returns the change of the ring's size in bytes.
    pub(crate) fn add(&mut self, step: u64, counted: &Counted) -> isize {
        let before = self.size();
        if self.cells.is_empty() {
            self.first = step;
        }
        while step < self.first {
            self.cells.push_front(None);
            self.first -= 1;
        }
        let at = (step - self.first) as usize;
        if self.cells.len() <= at {
            self.cells.resize(at + 1, None);
        }
        let cell = &mut self.cells[at];
        let old = cell.as_ref().map(|cell| (cell.size(), cell.read()));
        let old_size = old.as_ref().map_or(0, |(size, _)| *size);
        let sum = match old {
            Some((_, mut sum)) => {
                sum.add(counted);
                sum
            }
            None => counted.clone(),
        };
        let new = Cell::of(&sum);
        let change = new.size() as isize - old_size as isize;
        *cell = Some(new);
        self.size() as isize - before as isize + change
    }

    /// Drops the steps before `step`. Returns the change of the ring's size in bytes.
    pub(crate) fn forget_before(&mut self, step: u64) -> isize {
        let mut freed = 0;
        while self.first < step
            && let Some(cell) = self.cells.pop_front()
        {
            self.first += 1;
            freed += cell.map_or(0, |cell| cell.size());
        }
        if self.cells.is_empty() {
            let before = self.size();
            self.cells = VecDeque::new();
            freed += before;
        }
        -(freed as isize)
    }

    /// Returns the counts of a step; `None` for a gap.
    pub(crate) fn get(&self, step: u64) -> Option<Counted> {
        let at = usize::try_from(step.checked_sub(self.first)?).ok()?;
        self.cells.get(at)?.as_ref().map(Cell::read)
    }

    /// Returns the steps that are not gaps.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Counted)> {
        (self.first..).zip(&self.cells).filter_map(|(step, cell)| Some((step, cell.as_ref()?.read())))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the size of the slots without their contents, in bytes.
    fn size(&self) -> usize {
        self.cells.capacity() * size_of::<Option<Cell>>()
    }
}
