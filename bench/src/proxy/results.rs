//! Results of each contender in each setting.

use std::{collections::BTreeMap, fmt};

use super::contenders::Contender;

/// Results of one side in one setting, by round.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    /// CPU of the proxy per request, in nanoseconds.
    pub(super) cpu: Vec<f64>,
    /// Requests per second.
    pub(super) rate: Vec<f64>,
}

/// Number of connections, and bytes of the body.
pub(super) type Setting = (usize, usize);

/// Results of all contenders in one setting.
pub(super) type Cell = Vec<(Contender, Runs)>;

/// Results for one protocol.
#[derive(Default)]
pub(super) struct Results {
    pub(super) cells: BTreeMap<Setting, Cell>,
    pub(super) rss: Vec<(Contender, u64)>,
}

impl Results {
    pub(super) fn cell(&mut self, setting: Setting) -> &mut Cell {
        self.cells.entry(setting).or_default()
    }

    /// Prints the results, one line per setting.
    pub(super) fn show(&self, name: &str) {
        for ((connections, body), cell) in &self.cells {
            eprintln!("{name} {connections:>3} connections {body:>5} B: {}", Shown(cell));
        }
    }
}

struct Shown<'a>(&'a Cell);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (who, runs)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{who} {:.1} µs {:.0}/s", median(&runs.cpu) / 1e3, median(&runs.rate))?;
        }
        Ok(())
    }
}

/// Results of one contender.
pub(super) fn of(cell: &Cell, who: Contender) -> Option<&Runs> {
    cell.iter().find(|(other, _)| *other == who).map(|(_, runs)| runs)
}

/// CPU per request, in microseconds.
pub(super) fn cpu_us(cell: &Cell, who: Contender) -> Option<f64> {
    of(cell, who).map(|runs| median(&runs.cpu) / 1e3)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
